# Runs on a switch as root: `sh -c THIS headway-push COMMAND ...`. The folder $dir has one push at a time. It is in memory, so after a restart
# the switch has frr.conf and nothing of a push: the old one until the push is confirmed, the new one from then on.
#
# The file `armed` decides: a confirmation renames it to `confirmed`, an undo to `undoing`, and a rename succeeds once.
set -u
umask 077
PATH=$PATH:/usr/sbin:/sbin:/usr/bin:/bin
# vtysh writes each command into the history of the user otherwise.
export VTYSH_HISTFILE=/dev/null
dir=/run/headway-push
file=/etc/frr/frr.conf
# How long one reload of the configuration may take.
reload_s=120

fail() {
  echo "$1" >&2
  exit "${2:-1}"
}

note() {
  echo "$1"
  logger -t headway-push -- "$1" 2>/dev/null || :
}

# Whole seconds since the start of the kernel: no change of the clock moves the time of an undo.
uptime_s() {
  read -r since _ </proc/uptime
  echo "${since%.*}"
}

# When a process was started; a later process with its number has another time.
start_of() {
  read -r stat <"/proc/$1/stat" || return 1
  # The name of the program, in parentheses, may have spaces; the fields after it are words.
  # shellcheck disable=SC2086
  set -- ${stat##*) }
  echo "${20}"
}

# Records that this process runs the undo.
take_watch() { echo "$$ $(start_of $$)" >"$dir/pid"; }

is_watched() {
  read -r pid began <"$dir/pid" && [ "$(start_of "$pid")" = "$began" ]
} 2>/dev/null

running() { vtysh -c 'show running-config no-header'; }

reloader() {
  for each in /usr/lib/frr /usr/libexec/frr /usr/local/lib/frr; do
    [ ! -f "$each/frr-reload.py" ] || { echo "$each/frr-reload.py"; return; }
  done
}

# Brings FRR to $1/frr.conf and restarts no daemon. frr-reload.py saves the result to /etc/frr, unless the file is the one of its --confdir.
reload() {
  timeout -k 5 "$reload_s" "$(reloader)" --reload --stdout --confdir "$1" "$1/frr.conf" >"$dir/log" 2>&1
}

# Both are sorted: FRR prints some lines in the order in which they came.
is_old() { running | sort | cmp -s - "$dir/old/sorted"; }

# Puts a text in the place of frr.conf, with owner and mode of the file that is there, or of FRR's own.
install_file() {
  new=/etc/frr/.frr.conf.headway-new
  rm -f "$new" && cat "$1" >"$new" || return 1
  if [ -e "$file" ]; then
    chown --reference="$file" "$new" && chmod --reference="$file" "$new" || return 1
  else
    chmod 640 "$new" && { chown frr:frr "$new" 2>/dev/null || :; } || return 1
  fi
  sync "$new" && mv -fT "$new" "$file" && sync /etc/frr
}

restore_file() {
  if [ ! -e "$dir/old/saved" ]; then
    rm -f "$file"
  elif ! cmp -s "$dir/old/saved" "$file"; then
    install_file "$dir/old/saved"
  fi
}

# Removes the folder at once, so that the next push finds all of it or none.
leave() { mv -T "$dir" "$dir.$$" && rm -rf "$dir.$$"; }

undo() {
  mv "$dir/armed" "$dir/undoing" 2>/dev/null || return 76
  take_watch
  restore_file
  for pause in 2 5 10 0; do
    (
      flock -w $((reload_s + 30)) 9 || exit 1
      reload "$dir/old"
    ) 9>"$dir/lock"
    if is_old; then
      note "the old configuration is back"
      leave
      return 0
    fi
    sleep "$pause"
  done
  mv "$dir/undoing" "$dir/failed"
  note "the old configuration could not be restored; it is $dir/old/frr.conf"
  return 1
}

# Lines of `name value`, about this switch and a push that it is in.
look() {
  echo "host $(uname -n)"
  if ! command -v vtysh >/dev/null; then
    echo 'without vtysh of the package frr'
  elif [ -z "$(reloader)" ]; then
    echo 'without frr-reload.py of the package frr-pythontools'
  elif ! command -v flock >/dev/null; then
    echo 'without flock of the package util-linux'
  fi
  if grep -qs '^ *no service integrated-vtysh-config' /etc/frr/vtysh.conf || { [ ! -e "$file" ] && [ -e /etc/frr/bgpd.conf ]; }; then
    echo 'split yes'
  fi
  for state in armed confirmed undoing failed; do
    [ ! -e "$dir/$state" ] || echo "push $state"
  done
  if [ -d "$dir" ]; then
    echo "left $(($(cat "$dir/deadline") - $(uptime_s)))"
    echo "by $(cat "$dir/by")"
    is_watched || echo 'watched no'
  fi
}

# $1: the seconds until the undo, $2: who pushes, $3: the SHA-256 of standard input, whose first $4 bytes are the new frr.conf, and the rest
# what FRR is to print then, $5: the SHA-256 of the running configuration that was shown, $6: this script.
arm() {
  made=$(mktemp -d /run/headway-push.XXXXXX) || exit 1
  trap 'rm -rf "$made"' EXIT
  mkdir "$made/old" "$made/new"
  cat >"$made/sent"
  [ "$(sha256sum <"$made/sent")" = "$3  -" ] || fail 'the configuration was not transferred completely'
  head -c "$4" "$made/sent" >"$made/new/saved"
  tail -c "+$(($4 + 1))" "$made/sent" >"$made/new/frr.conf"
  running >"$made/old/frr.conf" || fail 'vtysh does not print the running configuration'
  [ "$(sha256sum <"$made/old/frr.conf")" = "$5  -" ] || fail 'the running configuration has changed since it was shown' 77
  sort "$made/old/frr.conf" >"$made/old/sorted"
  [ ! -e "$file" ] || cp -p "$file" "$made/old/saved" || exit 1
  for each in old new; do
    cat /etc/frr/vtysh.conf >"$made/$each/vtysh.conf" 2>/dev/null || :
  done
  printf '%s' "$6" >"$made/on_switch"
  echo "$2" >"$made/by"
  token=${made##*.}
  echo "$token" >"$made/armed"
  echo $(($(uptime_s) + $1)) >"$made/deadline"
  mv -T "$made" "$dir" 2>/dev/null || fail 'another push is in progress' 75
  # systemd may end what a session has started with the session; a unit is no part of one.
  if [ -d /run/systemd/system ]; then
    systemd-run --quiet --collect --unit="headway-push-$token" sh "$dir/on_switch" watch "$token"
  else
    setsid sh "$dir/on_switch" watch "$token" </dev/null >/dev/null 2>&1 &
  fi
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ ! -s "$dir/pid" ] || { note "a push of $2 begins; the old configuration comes back in $1 s without a confirmation"; exit 0; }
    sleep 0.5
  done
  leave
  fail 'the undo could not be started'
}

watch() {
  take_watch
  while [ "$(cat "$dir/armed" 2>/dev/null)" = "$1" ]; do
    if [ "$(uptime_s)" -ge "$(cat "$dir/deadline")" ]; then
      note 'the push was not confirmed in time'
      undo
      exit
    fi
    sleep 1
  done
}

apply() {
  (
    flock -w "$reload_s" 9 || fail 'another reload of this push does not end'
    [ -e "$dir/armed" ] || fail 'the undo came first' 76
    reload "$dir/new"
  ) 9>"$dir/lock" || {
    code=$?
    grep -E 'ERROR|WARNING|Error|%|Traceback' "$dir/log" 2>/dev/null | tail -n 5 >&2
    exit "$code"
  }
}

confirm() {
  [ -e "$dir/armed" ] || fail 'the undo came first' 76
  # What ran before stays next to the new file, for a person.
  kept=$file.before-push
  if [ -e "$file" ]; then
    cp -p "$file" "$kept" || fail "$kept could not be written"
  fi
  cat "$dir/old/frr.conf" >"$kept" || fail "$kept could not be written"
  install_file "$dir/new/saved" || fail "$file could not be written"
  if ! mv "$dir/armed" "$dir/confirmed" 2>/dev/null; then
    restore_file
    fail 'the undo came first' 76
  fi
  note 'the push is confirmed'
  leave
}

# For the folder of a push whose processes were all killed: its undo, or what a confirmation left.
recover() {
  [ ! -e "$dir/confirmed" ] || { leave; exit; }
  mv "$dir/undoing" "$dir/armed" 2>/dev/null
  undo
}

command=$1
shift
case $command in
look | arm | watch | apply | confirm | undo | recover) "$command" "$@" ;;
*) fail "no command $command" 2 ;;
esac
