# Completion of sshoal for fish. `sshoal complete` prints the candidates.

function __sshoal_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    for line in ($words[1] complete -- $words[2..-1] $word 2>/dev/null)
        switch $line
            case ':files *' ':directories *'
                set -l prefix (string replace -r '^:\w+ ' '' -- $line)
                set -l path (string sub -s (math 1 + (string length -- $prefix)) -- $word)
                set -l found
                if string match -q ':files *' -- $line
                    set found (__fish_complete_path $path)
                else
                    set found (__fish_complete_directories $path '')
                end
                for candidate in $found
                    echo $prefix$candidate
                end
            case '*'
                echo $line
        end
    end
end

complete -c sshoal -f -a '(__sshoal_complete)'
