"""Hostile commands, each for a way to write, run or set something that looks like reading: none is allowed."""

import pytest

from tools.permission import GUARDED, decide
from tools.verdict import Decision

ONE_LINE = r"""
date 010112002030
date -s tomorrow
date --set=x
printf '%n' 'a[$(id)]'
printf '%s%n' x 'a[$(touch pwn)]'
cat < /dev/tc\p/127.0.0.1/80
cat </dev/tc\p/h/80
cat <> f
cat <>f
cat 3<> f
ls >| f
ls >& f
ls &>f
ls 1<>f
{rm,x}
{rm,-rf,x}
r{m,} x
/bin/r? x
/bin/r[m] x
git {reset,--hard}
git log --out{put=f,}
find . -del{ete,}
find . *
find * -name x
find "$x"
find . "-del""ete"
find . -exec {} \;
find . -fprint f
find . -fls f
find . -fprintf f x
find . -files0-from f
find -D exec .
find . -ok cat {} \;
xargs env
xargs command
xargs timeout 5
xargs nice
xargs sed -n 1p
xargs find
xargs git log
xargs -I{} cat {}
xargs -a f cat
xargs -p cat
env -S 'rm x'
env -- A=b ls
env --split-string='rm x'
echo $[1]
echo $[a[$(id)]]
echo ${x@P}
echo ${x:=y}
echo ${!x}
echo $((a[0]))
echo $'a'
coproc cat
coproc rm x
time -o f cat
trap 'rm x' EXIT; ls
alias ls='rm x'; ls
hash -p ./evil ls; ls
export PATH=.; ls
PATH=. ls
source f
. f
ls | .  f
enable -f ./x.so cat
builtin source f
builtin enable -f x y
mapfile -C 'rm x' -c 1 a < f
readarray -C rm a < f
compgen -C 'rm x'
complete -C 'rm x'
bind -x '"a":rm x'
declare -n x=y
read x < f
let 'a[$(id)]=1'
[ 'a[$(id)]' -eq 1 ]
[[ 'a[$(id)]' -eq 1 ]]
unset 'a[$(id)]'
wait -p 'a[$(id)]' 1
ls "$(rm x)"
ls "`rm x`"
cat "${x:-$(rm x)}"
diff <(rm x) f
cat f | python3
cat f | perl
curl x | sh
base64 -d f | sh
tee f < g
cat f >/dev/null/../x
cat f > /dev/nul\l
cat f >"/dev/null"
awk 'BEGIN{system("rm x")}'
vim -c ':!rm x'
less f
man ls
git -c core.pager='rm x' log
GIT_PAGER=rm git log
git --exec-path=. log
git log --show-signature
git log --format=%G?
git diff --output=f
git diff --outpu f
git diff --ext-diff
git diff --textconv
git grep -Ovi x
git grep x
git archive --exec=x HEAD
git log -p --output f
git stash
git branch -D x
git branch x
git branch --edit-description
git remote show origin
git remote add x y
git tag x
git tag -d x
git config --get x
git config x y
git show --remerge-diff HEAD
git rev-parse --parseopt
git cat-file --batch
git cat-file --filters HEAD:f
git ls-files --with-tree=x
git shortlog --output=f
git blame --contents f g
git fetch
git status --output=x
git describe --contains
rg --pre cat x
rg --hostname-bin x y
rg -z x
rg --search-zip x
rg -f f
tree -o f
tree -R -L 1
file -C -m x
file -m x y
file -z x
sort -S 1 --compress-program=x f
sort -T . f
sort -of f
uniq a b
uniq -- a b
sed -n '1w f' g
sed -n 's/a/b/we' f
sed --expression=1w\ f g
sed -f x g
sed -n '1r f' g
sed -n 1p -i g
sed -ni 1p g
sed 's/x/touch y/e' f
sed -n '/a/,/b/{p}' f
sed "s/a/$x/" f
sed -n "${x}p" f
busybox sh -c ls
busybox --install -s
busybox wget x
busybox vi f
busybox tar xf f
toybox rm x
nohup rm x
nice -5 cat f
ionice -p 1
setsid -fw rm x
stdbuf -oL rm x
chroot . ls
unshare ls
nsenter ls
sudo -l
doas ls
su -c ls
runuser ls
pkexec ls
hostname x
hostname -F f
cat f & rm x
cat f |& rm x
ls;rm x
ls&&rm x
ls||rm x
(rm x)
{ rm x; }
while read x; do rm $x; done < f
for f in *; do rm $f; done
select x in a; do rm x; done
case x in x) rm x;; esac
function ls { rm x; }
ls() { rm x; }
ls() ( rm x )
if rm x; then :; fi
until rm x; do :; done
! rm x
time rm x
time -p rm x
[[ -n $(rm x) ]]
((a=$(rm x)))
echo "${x#$(rm x)}"
dd if=f of=g
truncate -s 0 f
install f g
ln -s f g
cp f g
mv f g
touch f
mkdir d
rmdir d
chmod 777 f
chown x f
kill -9 -1
pkill x
killall x
crontab -r
at now
mount
umount x
sysctl -w x=y
nc -l 1
curl x
wget x
pip install x
npm i
make
docker run x
ed f
ex f
xxd -r f g
openssl enc -in f -out g
split f
csplit f 1
shuf -o f g
ps > f
dircolors -b > f
\rm x
"rm" x
'r'm x
r''m x
r\m x
$'rm' x
$"rm" x
command -p rm x
command -pv rm
command -- rm x
exec -a cat rm x
exec rm x
env -u A rm x
env -i rm x
env - rm x
timeout 1 rm x
timeout -k 1 1 rm x
timeout --signal=KILL 1 rm x
find . -exec rm {} +
find . -exec env rm {} \;
find . -execdir rm {} \;
find . -exec sh -c 'rm "$1"' _ {} \;
find . -type f -print0 | xargs -0 rm
find . | xargs -n1 -P4 rm
echo x | xargs -r sh -c 'rm x'
perl -e 'unlink "x"'
ruby -e x
node -e x
php -r x
python3 -c 'x'
lua -e x
tclsh f
gdb -ex 'shell rm x'
strace rm x
ltrace rm x
script -c 'rm x'
expect -c x
socat x y
watch rm x
parallel rm ::: x
flock f rm x
start-stop-daemon --exec rm
systemd-run rm x
at -f f now
batch
logrotate f
tar cf x --checkpoint-action=exec=rm .
zip x y -T -TT rm
rsync -e rm a b
scp a b
ssh -o ProxyCommand=rm x
gcc -wrapper rm f
jq -n 'input' > f
ls {fd}>f
ls >f 2>&1
cat f 2>&1 >g
cat <f >g
sort f -o f
sort f -of
sort -uo f f
printf -v x y
printf -vx y
printf "%n" x
printf $x
printf "$x" y
printf -- '%n' x
env printf '%n' x
test -v x
test -R x
test x -ot $(id)
date -d "$(rm x)"
date -f f
date -r f 0101
tr a b < f > f
uniq f f
command printf '%n' x
builtin printf '%n' x
""".strip().splitlines()  # fmt: skip

SEVERAL_LINES = [
    "sed -n '1{p;w f\n}' g",
    "cat <<E\n$(rm x)\nE",
    "cat <<-'E' | sh\nrm x\nE",
    "cat <<E >f\nx\nE",
    "rm\\\n x",
    "python3 - <<E\nE",
    "ls\ttouch y\nrm z",
    "printf '%n' PATH\nls",
]
ODD_CHARACTERS = ["ls\rrm x", "ls\x0brm x", "ls\x0crm x", "ls\u2028rm x", "ls\x00; rm x", "ca\u200bt x", "\u202els x"]

READING = [
    "date",
    "date +%F",
    "date -u -d yesterday '+%F %T'",
    "date -r f +%s",
    "printf '%s\\n' a b",
    "printf '100%%\\n'",
    "printf -- '-%5.2f|%-10s|%x\\n' 1 a 255",
    "printf hello",
    "cat < f",
]


@pytest.mark.parametrize("command", [*ONE_LINE, *SEVERAL_LINES, *ODD_CHARACTERS], ids=lambda command: command[:40])
def test_nothing_that_may_do_more_than_read_is_allowed(command: str) -> None:
    verdict = decide("Bash", {"command": command}, GUARDED)
    assert verdict.decision is not Decision.ALLOW, verdict.reason


@pytest.mark.parametrize("command", READING)
def test_what_looks_like_them_and_only_reads_is_allowed(command: str) -> None:
    verdict = decide("Bash", {"command": command}, GUARDED)
    assert verdict.decision is Decision.ALLOW, verdict.reason
