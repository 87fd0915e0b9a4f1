#compdef sshoal
# Completion of sshoal for zsh. `sshoal complete` prints the candidates.

_sshoal() {
    local line prefix
    local -a answer
    answer=("${(@f)$(${(Q)words[1]} complete -- "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)}")
    for line in $answer; do
        case $line in
            ':files '* | ':directories '*)
                prefix=${line#* }
                compset -P "${(b)prefix}"
                case $line in
                    :files*) _files ;;
                    *) _files -/ ;;
                esac
                ;;
            *)
                local word=${line%%$'\t'*} shown=("${line/$'\t'/  -- }")
                case $word in
                    *[=:,/]) compadd -S '' -l -d shown -- $word ;;
                    *) compadd -l -d shown -- $word ;;
                esac
                ;;
        esac
    done
}

# The file may be sourced, or autoloaded as the function itself.
if [[ $funcstack[1] == _sshoal ]]; then _sshoal "$@"; else compdef _sshoal sshoal; fi
