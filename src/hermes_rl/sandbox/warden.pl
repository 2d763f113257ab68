# The warden: the first process of a sandbox. It runs commands for the host, which talks to it on its standard input
# and output in frames: a type (one byte), a command's number and a length (32 bits each, network order), the payload.
#
# From the host                                     To the host
#   H settings (first of all)                         h  ready
#   R number: run; fields cwd uid gid mode limit      o, e  number: standard output, standard error
#     text environment…                               w  number: bytes of input that the command has taken
#   I, C  number: input, end of input                 x  number: it ended; code, truncated
#   K number: kill it and all that descends from it   k  number: done
#   A: kill everything                                a  done
#   P: still there                                    p
#
# Always true: at the end of its input everything in the sandbox is killed, then the warden exits. Every command has a
# keeper between it and the warden that adopts its orphans, so that no child can leave its command's tree.
# Perl, because every Debian and Ubuntu image has it (perl-base), also where Python is missing. No module is loaded and
# the kernel is called by number: POSIX.pm alone takes 14 ms, which is more than all the rest of a sandbox's start.
use strict;

# A call that is getpid on x86_64 and fails on aarch64 tells the two apart.
my %SYS = syscall(39, 0, 0) == $$
    ? (close => 3, clock_gettime => 228, dup3 => 292, exit_group => 231, keyctl => 250, mount => 165, prctl => 157,
       prlimit64 => 302, setgid => 106, setgroups => 116, setsid => 112, setuid => 105, unshare => 272)
    : (close => 57, clock_gettime => 113, dup3 => 24, exit_group => 94, keyctl => 219, mount => 40, prctl => 167,
       prlimit64 => 261, setgid => 144, setgroups => 159, setsid => 157, setuid => 146, unshare => 97);
my ($SET_SUBREAPER, $SET_NO_NEW_PRIVS, $SET_PDEATHSIG, $BSET_DROP) = (36, 38, 1, 24);
my ($EINTR, $EAGAIN, $WNOHANG, $GETFL, $SETFL, $NONBLOCK) = (4, 11, 1, 3, 4, 04000);
my ($PIECE, $HIGH) = (65536, 1 << 20);
my ($EOF_GRACE, $KILL_ROUNDS, $MEMORY_PAUSE) = (0.1, 200, 0.05);

my %set;        # the host's settings
my %command;    # number => what is known of a running command
my %keepers;    # process id => 1, while it lives
my %drain;      # file descriptor => handle that a background process may still write to
my ($in, $out) = ('', '');
my $heard = now();
my $memory_due = 0;
my $own_proc = '/proc';    # as the warden alone may write to it

sub prctl { return syscall($SYS{prctl}, $_[0], $_[1] // 0, 0, 0, 0) }
sub quit { syscall($SYS{exit_group}, $_[0]) }
sub no_wait { fcntl $_[0], $SETFL, fcntl($_[0], $GETFL, 0) | $NONBLOCK }
sub again { return $! == $EAGAIN || $! == $EINTR }
sub least { my ($one, $other) = @_; return !defined $one || $other < $one ? $other : $one }

# Seconds since some moment; never set back.
sub now {
    my $time = "\0" x 16;
    syscall($SYS{clock_gettime}, 1, $time);
    my ($seconds, $nanoseconds) = unpack 'qq', $time;
    return $seconds + $nanoseconds / 1e9;
}

sub send_frame { my ($type, $number, $payload) = @_; $out .= pack('aNN', $type, $number, length $payload) . $payload }
sub fields { return unpack '(N/a)*', $_[0] }

# Exits with 0 when nothing is left.
sub leave {
    my $well = kill_all();
    # An owner that died cannot remove the directories of a sandbox that lives on its machine. Where the user is not
    # root, directories that the policy closed must be opened first.
    if (my @left = grep { length } split /\0/, $set{remove} // '') {
        my $remove = 'rm -rf -- "$@" 2>/dev/null || { chmod -R u+rwX -- "$@"; rm -rf -- "$@"; }';
        my $pid = fork // quit(1);
        if (!$pid) { close STDIN; exec '/bin/sh', '-c', $remove, 'sh', @left or quit(1) }
        waitpid $pid, 0;
        $well &&= $? == 0;
    }
    quit($well ? 0 : 1);
}

# --- the processes inside ---

sub parents {
    my %parent;
    opendir my $proc, '/proc' or return {};
    for my $pid (grep { /^\d+$/ } readdir $proc) {
        open my $file, '<', "/proc/$pid/stat" or next;
        my $line = <$file> // next;
        $parent{$pid} = $1 if $line =~ /.*\) [^ZX] (\d+)/s;
    }
    return \%parent;
}

sub descendants {
    my ($pid, $parents) = @_;
    my %below;
    push @{ $below{ $parents->{$_} } }, $_ for keys %$parents;
    my @found = my @next = @{ $below{$pid} // [] };
    while (@next = map { @{ $below{$_} // [] } } @next) { push @found, @next }
    return @found;
}

sub nap { select undef, undef, undef, $_[0] }

# Whether no child is left.
sub reap {
    my $pid;
    delete $keepers{$pid} while ($pid = waitpid -1, $WNOHANG) > 0;
    return $pid < 0;
}

# All but the warden; in a process namespace of its own at one stroke, which even a fork bomb does not survive.
sub kill_all {
    for my $round (1 .. $KILL_ROUNDS) {
        if ($set{alone}) { kill KILL => -1 } else { kill KILL => descendants($$, parents()) }
        if (reap()) { free_shared_memory() if $set{own_ipc}; return 1 }
        nap(0.001 * ($round < 20 ? $round : 20));
    }
    return 0;
}

# What the kernel keeps for System V's calls outlives the processes that asked for it.
sub free_shared_memory {
    my %remove = (
        shm => sub { shmctl $_[0], 0, 0 },
        msg => sub { msgctl $_[0], 0, 0 },
        sem => sub { semctl $_[0], 0, 0, 0 },
    );
    for my $kind (keys %remove) {
        open my $list, '<', "/proc/sysvipc/$kind" or next;
        for (<$list>) { $remove{$kind}->($1) if /^\s*-?\d+\s+(\d+)/ }
    }
}

# What descends from a keeper, and from nobody's keeper. The keeper goes first: one that has not started its command yet
# would do so between a look that finds nothing and its own end. Its orphans are the warden's, as are those of a keeper
# that the policy killed.
sub kill_tree {
    my ($keeper) = @_;
    if ($keepers{$keeper}) { kill KILL => $keeper; waitpid $keeper, 0; delete $keepers{$keeper} }
    for my $round (1 .. $KILL_ROUNDS) {
        reap();
        my $parents = parents();
        my @strays = grep { $parents->{$_} == $$ and !$keepers{$_} } keys %$parents;
        my @trees = map { ($_, descendants($_, $parents)) } @strays or last;
        kill KILL => @trees;
        nap(0.001 * ($round < 20 ? $round : 20));
        # A tree that grows faster than it is felled takes the rest of the sandbox with it.
        kill_all() if $round == $KILL_ROUNDS;
    }
}

# Under gVisor the kernel that holds the limit is the host's, and takes the whole sandbox. So that it need not, the
# largest process goes first; the next one only when the memory of this one has had the time to come back.
sub hold_memory {
    return if now() < $memory_due;
    $memory_due = now() + $MEMORY_PAUSE;
    open my $file, '<', '/proc/meminfo' or return;
    my ($used) = join('', <$file>) =~ /^AnonPages:\s+(\d+)/m or return;
    return if $used <= $set{memory_mb} * 1024;
    my ($largest, $most) = (0, 0);
    for my $pid (keys %{ parents() }) {
        next if $pid == $$ or !open my $pages, '<', "/proc/$pid/statm";
        my $resident = (split / /, <$pages> // '0 0')[1];
        ($largest, $most) = ($pid, $resident) if $resident > $most;
    }
    kill KILL => $largest if $largest;
    $memory_due += $MEMORY_PAUSE * 3;
}

# --- a command ---

# As the command's user, or that user could not open /dev/stdout again.
sub pipe_for {
    my ($uid) = @_;
    my $self = $>;
    $> = $uid if $uid ne '' and $uid != $self;
    pipe my $read, my $write or return;
    $> = $self if $> != $self;
    return ($read, $write);
}

sub run {
    my ($number, $payload) = @_;
    my ($cwd, $uid, $gid, $mode, $limit, $text, @env) = fields($payload);
    my ($has_input, $merge) = map { index($mode, $_) >= 0 } qw(i m);
    my @input = $has_input ? pipe_for($uid) : ();
    my @output = pipe_for($uid);
    my @error = $merge ? () : pipe_for($uid);
    pipe my $status, my $tell or return refuse($number, "pipe: $!");
    my $keeper = fork;
    return refuse($number, "fork: $!") if !defined $keeper;
    if (!$keeper) {
        my @kept = grep { defined } $tell, $input[0], $output[1], $error[1];
        keep($tell, $input[0], $output[1], $error[1] // $output[1], \@kept, $cwd, $uid, $gid, $text, \@env);
    }
    $keepers{$keeper} = 1;
    my $new = $command{$number} = {
        number => $number, keeper => $keeper, status => $status, limit => $limit, pending => '', truncated => 0,
        streams => { o => { handle => $output[0], left => $limit } },
    };
    $new->{streams}{e} = { handle => $error[0], left => $limit } if !$merge;
    if ($has_input) { $new->{input} = $input[1]; no_wait($new->{input}) }
}

sub refuse {
    my ($number, $why) = @_;
    send_frame('e', $number, "hermes-rl: the sandbox cannot start a command: $why\n");
    send_frame('x', $number, pack 'NN', 126, 0);
}

# The keeper: never returns. It adopts what loses its parent, tells the command's end, and stays while any child lives.
sub keep {
    my ($tell, $input, $output, $error, $kept, $cwd, $uid, $gid, $text, $env) = @_;
    my %keep = map { fileno($_) => 1 } @$kept;
    # When memory runs out the kernel shall take the policy's processes, never the warden.
    if (open my $adjust, '>', "$own_proc/self/oom_score_adj") { syswrite $adjust, '1000' }
    syscall($SYS{setsid});
    opendir my $open, '/proc/self/fd' or quit(1);
    my @fds = readdir $open;
    closedir $open;
    for my $fd (@fds) { syscall($SYS{close}, $fd + 0) if $fd =~ /^\d+$/ and !$keep{$fd} and $fd != 2 }
    prctl($SET_SUBREAPER, 1);
    my $shell = fork // quit(1);
    if (!$shell) { become($input, $output, $error, $cwd, $uid, $gid, $text, $env) }
    syscall($SYS{close}, 2);
    for my $handle (@$kept) { close $handle if $handle != $tell }
    while ((my $pid = waitpid -1, 0) > 0) {
        if ($pid == $shell) {
            syswrite $tell, pack 'N', $? & 127 ? 128 + ($? & 127) : $? >> 8;
            close $tell;
        }
    }
    quit(0);
}

# The shell: never returns.
sub become {
    my ($input, $output, $error, $cwd, $uid, $gid, $text, $env) = @_;
    syscall($SYS{setsid});
    my $null;
    if (!$input) { open $null, '<', '/dev/null'; $input = $null }
    syscall($SYS{dup3}, fileno($error), 2, 0);
    syscall($SYS{dup3}, fileno($input), 0, 0);
    syscall($SYS{dup3}, fileno($output), 1, 0);
    if ($uid ne '' and ($uid != $< or $gid != $()) { drop_to($uid, $gid) or fail("cannot become user $uid: $!") }
    if ($uid ne '' and $uid == 0) { prctl($BSET_DROP, $_ + 0) for split / /, $set{withheld} // '' }
    $SIG{$_} = 'DEFAULT' for qw(PIPE HUP);
    umask 022;
    # RLIMIT_NPROC, which counts this user's processes in this user namespace.
    syscall($SYS{prlimit64}, 0, 6, pack('QQ', ($set{processes}) x 2), 0) if $set{processes};
    %ENV = $set{keep_env} ? (%ENV, @$env) : @$env;
    # The shell goes there itself and says so when it cannot; a directory that is there saves it the effort.
    chdir $cwd or chdir '/';
    exec { $set{shell} } 'bash', '-c', $text or fail("cannot start $set{shell}: $!");
}

sub drop_to {
    my ($uid, $gid) = @_;
    my $groups = pack 'L', $gid;
    return syscall($SYS{setgroups}, 1, $groups) == 0
        && syscall($SYS{setgid}, $gid + 0) == 0
        && syscall($SYS{setuid}, $uid + 0) == 0;
}

sub fail { syswrite STDERR, "hermes-rl: $_[0]\n"; quit(126) }

# --- what happens ---

sub read_stream {
    my ($one, $type) = @_;
    my $stream = $one->{streams}{$type};
    my $data;
    my $got = sysread $stream->{handle}, $data, $PIECE;
    return if !defined $got and again();
    if (!$got) { close $stream->{handle}; delete $one->{streams}{$type}; return }
    if ($got > $stream->{left}) { $one->{truncated} = 1; substr($data, $stream->{left}) = '' }
    $stream->{left} -= length $data;
    send_frame($type, $one->{number}, $data) if length $data;
}

# What a command that ended, or closed its input, cannot take counts as taken.
sub take_input {
    my ($one, $number, $data) = @_;
    if ($one and $one->{input} and !$one->{deaf}) { $one->{pending} .= $data }
    else { send_frame('w', $number, pack 'N', length $data) }
}

sub write_input {
    my ($one) = @_;
    my $put = syswrite $one->{input}, $one->{pending}, $PIECE;
    if (defined $put) { substr($one->{pending}, 0, $put) = '' }
    elsif (!again()) { $put = length $one->{pending}; $one->{pending} = ''; $one->{deaf} = 1 }
    send_frame('w', $one->{number}, pack 'N', $put) if $put;
    close_input($one) if $one->{ended} and !length $one->{pending};
}

sub close_input { my ($one) = @_; close delete $one->{input} if $one->{input} }

# The command's shell ended, or its keeper was killed. What it left in its pipes is still to be read.
sub read_status {
    my ($one) = @_;
    my $code;
    my $got = sysread $one->{status}, $code, 4;
    $one->{code} = $got ? unpack 'N', $code : 137;
    close delete $one->{status};
    $one->{until} = now() + $EOF_GRACE;
}

sub settle {
    my ($one) = @_;
    return if !exists $one->{code} or (%{ $one->{streams} } and now() < $one->{until});
    close_input($one);
    $drain{ fileno $_->{handle} } = $_->{handle} for values %{ $one->{streams} };
    send_frame('x', $one->{number}, pack 'NN', $one->{code}, $one->{truncated});
    delete $command{ $one->{number} };
}

sub kill_command {
    my ($number) = @_;
    if (my $one = $command{$number}) {
        kill_tree($one->{keeper});
        # What it wrote before it died; a pipe that is still held by somebody does not delay this.
        for my $type (keys %{ $one->{streams} }) {
            no_wait($one->{streams}{$type}{handle});
            my $before = -1;
            for (1 .. 64) {
                last if !$one->{streams}{$type} or length $out == $before;
                $before = length $out;
                read_stream($one, $type);
            }
        }
        @$one{qw(code until)} = (137, 0) if !exists $one->{code};
        close delete $one->{status} if $one->{status};
        $one->{until} = 0;
        settle($one);
    }
    send_frame('k', $number, '');
}

sub heed {
    my ($type, $number, $payload) = @_;
    my $one = $command{$number};
    if    ($type eq 'R') { run($number, $payload) }
    elsif ($type eq 'I') { take_input($one, $number, $payload) }
    elsif ($type eq 'C') { if ($one) { $one->{ended} = 1; close_input($one) if !length $one->{pending} } }
    elsif ($type eq 'K') { kill_command($number) }
    elsif ($type eq 'A') { send_frame('a', $number, kill_all() ? '' : 'processes in the sandbox would not die') }
    elsif ($type eq 'P') { send_frame('p', $number, '') }
    elsif ($type eq 'H') { begin($payload); send_frame('h', 0, '') }
}

# Many small processes that make themselves as precious as the warden would have the kernel take it. So /proc is
# covered with itself, read-only; the warden keeps a way to what is below.
sub guard_proc {
    open my $below, '<', '/proc' or die "/proc: $!\n";
    my ($path, $none, $bind, $read_only) = ('/proc', '', 4096, 32 | 8 | 4 | 2 | 1);
    syscall($SYS{mount}, $path, $path, $none, $bind, $none) == 0 or die "mount of /proc: $!\n";
    syscall($SYS{mount}, $none, $path, $none, $bind | $read_only, $none) == 0 or die "mount of /proc: $!\n";
    $set{below} = $below;
    $own_proc = '/proc/self/fd/' . fileno $below;
}

# A user namespace would open the parts of the kernel that only root reaches; podman's own filter lets it pass. clone3,
# whose flags no filter sees, is said to be missing, and so are the calls of other machines; libc then takes clone.
sub forbid_namespaces {
    my ($machine, $clone) = $SYS{unshare} == 272 ? (0xC000003E, 56) : (0xC00000B7, 220);
    my ($load, $equal, $at_least, $has, $return) = (0x20, 0x15, 0x35, 0x45, 0x06);
    my @filter = (
        [$load, 0, 0, 4], [$equal, 0, 8, $machine],
        [$load, 0, 0, 0], [$at_least, 6, 0, 0x40000000], [$equal, 5, 0, 435],
        [$equal, 1, 0, $SYS{unshare}], [$equal, 0, 2, $clone],
        [$load, 0, 0, 16], [$has, 2, 0, 0x10000000],
        [$return, 0, 0, 0x7FFF0000], [$return, 0, 0, 0x00050026], [$return, 0, 0, 0x00050001],
    );
    my $code = join '', map { pack 'SCCL', @$_ } @filter;
    my $program = pack 'S x6 P', scalar @filter, $code;
    syscall($SYS{prctl}, 22, 2, $program, 0, 0) == 0 or die "seccomp: $!\n";
}

sub begin {
    %set = fields($_[0]);
    # bwrap bounds the bytes of a tmpfs; a file without any costs the kernel a kilobyte too.
    for (split /\n/, $set{tmpfs} // '') {
        my ($options, $path, $kind) = (split(/ /, $_, 2), 'tmpfs');
        syscall($SYS{mount}, $kind, $path, $kind, 32 | 4 | 2, $options) == 0 or die "mount of $path: $!\n";
    }
    guard_proc() if $set{guard_proc};
    # A user namespace inside the one that bwrap made: the capabilities the warden keeps reach over nothing, but the
    # policy, which has none, can neither trace it nor write to its descriptors.
    if (my $ids = $set{inner}) {
        my ($uid, $gid) = ($>, $) + 0);
        syscall($SYS{unshare}, 0x10000000) == 0 or die "unshare: $!\n";
        for my $line (['setgroups', 'deny'], ['uid_map', "$ids $uid 1"], ['gid_map', "$ids $gid 1"]) {
            open my $file, '>', "$own_proc/self/$line->[0]" or die "$line->[0]: $!\n";
            defined syswrite $file, $line->[1] or die "$line->[0]: $!\n";
        }
    }
    prctl($SET_PDEATHSIG, 9) if $set{dies_with_parent};
    prctl($SET_NO_NEW_PRIVS, 1) if $set{no_new_privs};
    forbid_namespaces() if $set{forbid_namespaces};
    prctl($SET_SUBREAPER, 1);
    # A session keyring is inherited; the host's may hold keys.
    syscall($SYS{keyctl}, 1, 0, 0, 0, 0);
    syscall($SYS{setsid});
    $set{shell} //= '/bin/bash';
}

$SIG{PIPE} = 'IGNORE';
$SIG{HUP} = 'IGNORE' if $$ != 1;
binmode $_ for \*STDIN, \*STDOUT;
no_wait($_) for \*STDIN, \*STDOUT;

while (1) {
    my ($readable, $writable, $wait) = ('', '', undef);
    vec($readable, 0, 1) = 1;
    vec($writable, 1, 1) = 1 if length $out;
    my $full = length $out > $HIGH;
    for my $one (values %command) {
        vec($readable, fileno $one->{status}, 1) = 1 if $one->{status};
        if (!$full) { vec($readable, fileno $_->{handle}, 1) = 1 for values %{ $one->{streams} } }
        vec($writable, fileno $one->{input}, 1) = 1 if $one->{input} and length $one->{pending};
        if (exists $one->{code}) { my $left = $one->{until} - now(); $wait = least($wait, $left < 0 ? 0 : $left) }
    }
    vec($readable, $_, 1) = 1 for keys %drain;
    if ($set{lease}) {
        my $left = $heard + $set{lease} - now();
        leave() if $left < 0;
        $wait = least($wait, $left);
    }
    if ($set{memory_mb} and %keepers) { hold_memory(); $wait = least($wait, $MEMORY_PAUSE) }
    select $readable, $writable, undef, $wait;

    if (vec($writable, 1, 1)) {
        my $put = syswrite STDOUT, $out, $PIECE * 4;
        if (defined $put) { substr($out, 0, $put) = '' }
        elsif (!again()) { leave() }
    }
    for my $fd (keys %drain) {
        next if !vec($readable, $fd, 1);
        my $dropped;
        my $got = sysread $drain{$fd}, $dropped, $PIECE;
        if (defined $got and !$got) { close delete $drain{$fd} }
    }
    for my $one (values %command) {
        for my $type (keys %{ $one->{streams} }) {
            read_stream($one, $type) if vec($readable, fileno $one->{streams}{$type}{handle}, 1);
        }
        write_input($one) if $one->{input} and vec($writable, fileno $one->{input}, 1);
        read_status($one) if $one->{status} and vec($readable, fileno $one->{status}, 1);
        settle($one);
    }
    if (vec($readable, 0, 1)) {
        my $got = sysread STDIN, $in, $PIECE * 4, length $in;
        leave() if defined $got ? !$got : !again();
        $heard = now();
        while (length $in >= 9) {
            my ($type, $number, $length) = unpack 'aNN', $in;
            last if length $in < 9 + $length;
            my $payload = substr $in, 9, $length;
            substr($in, 0, 9 + $length) = '';
            heed($type, $number, $payload);
        }
    }
    reap();
}
