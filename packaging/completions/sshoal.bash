# Completion of sshoal for bash. `sshoal complete` prints the candidates.

_sshoal() {
    local words word line values=() prefix='' path
    # shellcheck disable=SC2162 # Without -r, a backslash escapes the next character, as on the command line.
    read -a words <<<"${COMP_LINE:0:COMP_POINT}"
    case ${COMP_LINE:0:COMP_POINT} in *[[:blank:]]) words+=('') ;; esac
    word=${words[-1]}
    # bash replaces only what follows the last of these characters (= : @ ...).
    local kept=${word%"${word##*["$COMP_WORDBREAKS"]}"}
    while IFS= read -r line; do
        case $line in
            ':files '* | ':directories '*)
                prefix=${line#* }
                local kind=-f
                case $line in :directories*) kind=-d ;; esac
                while IFS= read -r path; do
                    values+=("${prefix#"$kept"}$path")
                done < <(compgen "$kind" -- "${word#"$prefix"}")
                compopt -o filenames
                ;;
            *)
                line=${line%%$'\t'*}
                values+=("${line#"$kept"}")
                case $line in *[=:,/]) compopt -o nospace ;; esac
                ;;
        esac
    done < <("${words[0]}" complete -- "${words[@]:1}" 2>/dev/null)
    COMPREPLY=("${values[@]}")
}

complete -F _sshoal sshoal
