# The guest agent: the first process of a sandbox. It runs commands for the host. Frames on standard input and output:
# a type (one byte), a command number and a length (32 bits each, network order), the payload.
#
# From the host                                     To the host
#   H settings (first frame)                          h  ready
#   R number: run; fields cwd uid gid mode limit      o, e  number: standard output, standard error
#     text environment…                               w  number: bytes of input consumed by the command
#   I, C  number: input, end of input                 x  number: ended; exit code, truncated
#   K number: kill it and its descendants             k  number: done
#   A: kill everything                                a  done
#   P: ping                                           p  pong
#
# Always true: at the end of its input it kills everything in the sandbox, then exits. Every command runs under a
# subreaper, a child of the guest agent that adopts orphans, so that no child can leave its command's tree.
# Perl, because every Debian and Ubuntu image has it (perl-base), even without Python. No module is loaded and syscalls
# are made by number: POSIX.pm alone takes 14 ms to load, more than all the rest of a sandbox's start.
use strict;

# Syscall 39 is getpid on x86_64 and fails on aarch64.
my %SYS = syscall(39, 0, 0) == $$
    ? (close => 3, clock_gettime => 228, dup3 => 292, exit_group => 231, keyctl => 250, mount => 165, prctl => 157,
       prlimit64 => 302, setgid => 106, setgroups => 116, setsid => 112, setuid => 105, unshare => 272)
    : (close => 57, clock_gettime => 113, dup3 => 24, exit_group => 94, keyctl => 219, mount => 40, prctl => 167,
       prlimit64 => 261, setgid => 144, setgroups => 159, setsid => 157, setuid => 146, unshare => 97);
my ($SET_SUBREAPER, $SET_NO_NEW_PRIVS, $SET_PDEATHSIG, $BSET_DROP) = (36, 38, 1, 24);
my ($EINTR, $EAGAIN, $WNOHANG, $GETFL, $SETFL, $NONBLOCK) = (4, 11, 1, 3, 4, 04000);
my ($CHUNK, $HIGH) = (65536, 1 << 20);
my ($EOF_GRACE, $KILL_ROUNDS, $MEMORY_PAUSE) = (0.1, 200, 0.05);

my %set;        # the host's settings
my %commands;   # number => state of a running command
my %subreapers; # process id => 1, while it lives
my %drain;      # file descriptor => output handle of an ended command that a background process may still write to
my ($in, $out) = ('', '');
my $last_received = now();
my $memory_due = 0;
my $own_proc = '/proc';    # a writable /proc that only the guest agent can reach

sub prctl { return syscall($SYS{prctl}, $_[0], $_[1] // 0, 0, 0, 0) }
sub quit { syscall($SYS{exit_group}, $_[0]) }
sub set_nonblocking { fcntl $_[0], $SETFL, fcntl($_[0], $GETFL, 0) | $NONBLOCK }
sub would_block { return $! == $EAGAIN || $! == $EINTR }
sub min_defined { my ($x, $y) = @_; return !defined $x || $y < $x ? $y : $x }

# Monotonic seconds.
sub now {
    my $time = "\0" x 16;
    syscall($SYS{clock_gettime}, 1, $time);
    my ($seconds, $nanoseconds) = unpack 'qq', $time;
    return $seconds + $nanoseconds / 1e9;
}

sub send_frame { my ($type, $number, $payload) = @_; $out .= pack('aNN', $type, $number, length $payload) . $payload }
sub fields { return unpack '(N/a)*', $_[0] }

# Exits with 0 if nothing is left.
sub shut_down {
    my $clean = kill_all();
    # A dead owner cannot remove the directories of its sandbox. A user who is not root must first restore the permissions
    # of directories that the policy closed.
    if (my @left = grep { length } split /\0/, $set{remove} // '') {
        my $remove = 'rm -rf -- "$@" 2>/dev/null || { chmod -R u+rwX -- "$@"; rm -rf -- "$@"; }';
        my $pid = fork // quit(1);
        if (!$pid) { close STDIN; exec '/bin/sh', '-c', $remove, 'sh', @left or quit(1) }
        waitpid $pid, 0;
        $clean &&= $? == 0;
    }
    quit($clean ? 0 : 1);
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

# Returns whether no child is left.
sub reap {
    my $pid;
    delete $subreapers{$pid} while ($pid = waitpid -1, $WNOHANG) > 0;
    return $pid < 0;
}

# Kills all but the guest agent. In a pid namespace of its own that is one call, which even a fork bomb does not survive.
sub kill_all {
    for my $round (1 .. $KILL_ROUNDS) {
        if ($set{alone}) { kill KILL => -1 } else { kill KILL => descendants($$, parents()) }
        if (reap()) { free_shared_memory() if $set{own_ipc}; return 1 }
        nap(0.001 * ($round < 20 ? $round : 20));
    }
    return 0;
}

# System V shared memory, queues and semaphores outlive their processes.
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

# Kills a subreaper and its descendants. The subreaper goes first: otherwise it could still start its command after we
# found no descendants. Its orphans become children of the guest agent, as do those of a subreaper that the policy killed.
sub kill_tree {
    my ($subreaper) = @_;
    if ($subreapers{$subreaper}) { kill KILL => $subreaper; waitpid $subreaper, 0; delete $subreapers{$subreaper} }
    for my $round (1 .. $KILL_ROUNDS) {
        reap();
        my $parents = parents();
        my @strays = grep { $parents->{$_} == $$ and !$subreapers{$_} } keys %$parents;
        my @trees = map { ($_, descendants($_, $parents)) } @strays or last;
        kill KILL => @trees;
        nap(0.001 * ($round < 20 ? $round : 20));
        # If a tree grows faster than it is killed, everything in the sandbox is killed.
        kill_all() if $round == $KILL_ROUNDS;
    }
}

# Under gVisor the host's kernel enforces the memory limit by killing the whole sandbox. To prevent that, kill the largest
# process first, and the next one only after its memory has had time to be freed.
sub enforce_memory_limit {
    return if now() < $memory_due;
    $memory_due = now() + $MEMORY_PAUSE;
    open my $file, '<', '/proc/meminfo' or return;
    my ($used) = join('', <$file>) =~ /^AnonPages:\s+(\d+)/m or return;
    return if $used <= $set{memory_mb} * 1024;
    my ($largest, $max_pages) = (0, 0);
    for my $pid (keys %{ parents() }) {
        next if $pid == $$ or !open my $pages, '<', "/proc/$pid/statm";
        my $resident = (split / /, <$pages> // '0 0')[1];
        ($largest, $max_pages) = ($pid, $resident) if $resident > $max_pages;
    }
    kill KILL => $largest if $largest;
    $memory_due += $MEMORY_PAUSE * 3;
}

# --- running a command ---

# Created as the command's user, so that it can reopen /dev/stdout.
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
    pipe my $status, my $status_write or return refuse($number, "pipe: $!");
    my $subreaper = fork;
    return refuse($number, "fork: $!") if !defined $subreaper;
    if (!$subreaper) {
        my @kept = grep { defined } $status_write, $input[0], $output[1], $error[1];
        run_subreaper($status_write, $input[0], $output[1], $error[1] // $output[1], \@kept, $cwd, $uid, $gid, $text, \@env);
    }
    $subreapers{$subreaper} = 1;
    my $new = $commands{$number} = {
        number => $number, subreaper => $subreaper, status => $status, limit => $limit, pending => '', truncated => 0,
        streams => { o => { handle => $output[0], left => $limit } },
    };
    $new->{streams}{e} = { handle => $error[0], left => $limit } if !$merge;
    if ($has_input) { $new->{input} = $input[1]; set_nonblocking($new->{input}) }
}

sub refuse {
    my ($number, $why) = @_;
    send_frame('e', $number, "hermes-rl: the sandbox cannot start a command: $why\n");
    send_frame('x', $number, pack 'NN', 126, 0);
}

# The subreaper: never returns. It adopts orphans, reports the command's exit status, and stays while any child lives.
sub run_subreaper {
    my ($status_write, $input, $output, $error, $kept, $cwd, $uid, $gid, $text, $env) = @_;
    my %keep = map { fileno($_) => 1 } @$kept;
    # When memory runs out the kernel must kill the policy's processes, never the guest agent.
    if (open my $adjust, '>', "$own_proc/self/oom_score_adj") { syswrite $adjust, '1000' }
    syscall($SYS{setsid});
    opendir my $open, '/proc/self/fd' or quit(1);
    my @fds = readdir $open;
    closedir $open;
    for my $fd (@fds) { syscall($SYS{close}, $fd + 0) if $fd =~ /^\d+$/ and !$keep{$fd} and $fd != 2 }
    prctl($SET_SUBREAPER, 1);
    my $shell = fork // quit(1);
    if (!$shell) { run_shell($input, $output, $error, $cwd, $uid, $gid, $text, $env) }
    syscall($SYS{close}, 2);
    for my $handle (@$kept) { close $handle if $handle != $status_write }
    while ((my $pid = waitpid -1, 0) > 0) {
        if ($pid == $shell) {
            syswrite $status_write, pack 'N', $? & 127 ? 128 + ($? & 127) : $? >> 8;
            close $status_write;
        }
    }
    quit(0);
}

# The shell: never returns.
sub run_shell {
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
    # RLIMIT_NPROC counts this user's processes in this user namespace.
    syscall($SYS{prlimit64}, 0, 6, pack('QQ', ($set{processes}) x 2), 0) if $set{processes};
    %ENV = $set{keep_env} ? (%ENV, @$env) : @$env;
    # The script changes the directory itself and reports failure; if it exists, start there.
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

# --- events ---

sub read_stream {
    my ($command, $type) = @_;
    my $stream = $command->{streams}{$type};
    my $data;
    my $got = sysread $stream->{handle}, $data, $CHUNK;
    return if !defined $got and would_block();
    if (!$got) { close $stream->{handle}; delete $command->{streams}{$type}; return }
    if ($got > $stream->{left}) { $command->{truncated} = 1; substr($data, $stream->{left}) = '' }
    $stream->{left} -= length $data;
    send_frame($type, $command->{number}, $data) if length $data;
}

# Input for a command that ended, or closed its input, counts as consumed.
sub take_input {
    my ($command, $number, $data) = @_;
    if ($command and $command->{input} and !$command->{input_closed}) { $command->{pending} .= $data }
    else { send_frame('w', $number, pack 'N', length $data) }
}

sub write_input {
    my ($command) = @_;
    my $put = syswrite $command->{input}, $command->{pending}, $CHUNK;
    if (defined $put) { substr($command->{pending}, 0, $put) = '' }
    elsif (!would_block()) { $put = length $command->{pending}; $command->{pending} = ''; $command->{input_closed} = 1 }
    send_frame('w', $command->{number}, pack 'N', $put) if $put;
    close_input($command) if $command->{ended} and !length $command->{pending};
}

sub close_input { my ($command) = @_; close delete $command->{input} if $command->{input} }

# The command's shell ended, or its subreaper was killed. Its pipes may still hold output.
sub read_status {
    my ($command) = @_;
    my $code;
    my $got = sysread $command->{status}, $code, 4;
    $command->{code} = $got ? unpack 'N', $code : 137;
    close delete $command->{status};
    $command->{until} = now() + $EOF_GRACE;
}

sub finish_if_ended {
    my ($command) = @_;
    return if !exists $command->{code} or (%{ $command->{streams} } and now() < $command->{until});
    close_input($command);
    $drain{ fileno $_->{handle} } = $_->{handle} for values %{ $command->{streams} };
    send_frame('x', $command->{number}, pack 'NN', $command->{code}, $command->{truncated});
    delete $commands{ $command->{number} };
}

sub kill_command {
    my ($number) = @_;
    if (my $command = $commands{$number}) {
        kill_tree($command->{subreaper});
        # Read what it wrote before it died, without waiting for other holders of the pipe.
        for my $type (keys %{ $command->{streams} }) {
            set_nonblocking($command->{streams}{$type}{handle});
            my $before = -1;
            for (1 .. 64) {
                last if !$command->{streams}{$type} or length $out == $before;
                $before = length $out;
                read_stream($command, $type);
            }
        }
        @$command{qw(code until)} = (137, 0) if !exists $command->{code};
        close delete $command->{status} if $command->{status};
        $command->{until} = 0;
        finish_if_ended($command);
    }
    send_frame('k', $number, '');
}

sub handle_frame {
    my ($type, $number, $payload) = @_;
    my $command = $commands{$number};
    if    ($type eq 'R') { run($number, $payload) }
    elsif ($type eq 'I') { take_input($command, $number, $payload) }
    elsif ($type eq 'C') { if ($command) { $command->{ended} = 1; close_input($command) if !length $command->{pending} } }
    elsif ($type eq 'K') { kill_command($number) }
    elsif ($type eq 'A') { send_frame('a', $number, kill_all() ? '' : 'processes in the sandbox do not die') }
    elsif ($type eq 'P') { send_frame('p', $number, '') }
    elsif ($type eq 'H') { apply_settings($payload); send_frame('h', 0, '') }
}

# Many small processes could lower their oom_score_adj to that of the guest agent, and the kernel would kill it instead.
# So /proc is covered with itself, read-only; the guest agent keeps a handle to the writable one below.
sub guard_proc {
    open my $below, '<', '/proc' or die "/proc: $!\n";
    my ($path, $none, $bind, $read_only) = ('/proc', '', 4096, 32 | 8 | 4 | 2 | 1);
    syscall($SYS{mount}, $path, $path, $none, $bind, $none) == 0 or die "mount of /proc: $!\n";
    syscall($SYS{mount}, $none, $path, $none, $bind | $read_only, $none) == 0 or die "mount of /proc: $!\n";
    $set{below} = $below;
    $own_proc = '/proc/self/fd/' . fileno $below;
}

# A user namespace would expose kernel code that only root can reach; podman's own seccomp filter allows it. clone3, whose
# flags no filter can see, and syscalls of other architectures return ENOSYS; libc then falls back to clone.
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
    install_filter(join '', map { pack 'SCCL', @$_ } @filter);
}

# For this process and all that it starts from now on. Filters add up: the strictest verdict counts.
sub install_filter {
    my ($code) = @_;
    my $program = pack 'S x6 P', length($code) / 8, $code;
    syscall($SYS{prctl}, 22, 2, $program, 0, 0) == 0 or die "seccomp: $!\n";
}

# A second barrier behind the mounts, where the kernel has Landlock of version 6 (Linux 6.12): writes reach only these
# directories, and neither abstract sockets nor signals leave the sandbox. A sandbox with the host's network would
# otherwise reach the host's abstract sockets. The numbers are the same on all architectures.
sub confine_writes {
    my ($create_ruleset, $add_rule, $restrict_self) = (444, 445, 446);
    return if syscall($create_ruleset, 0, 0, 1) < 6;
    my ($writing, $scopes) = (0xFFF2, 3);
    my $attributes = pack 'QQQ', $writing, 0, $scopes;
    my $ruleset = syscall($create_ruleset, $attributes, length $attributes, 0);
    die "landlock: $!\n" if $ruleset < 0;
    for my $directory (@_) {
        open my $handle, '<', $directory or die "$directory: $!\n";
        my $rule = pack 'Ql', $writing, fileno $handle;
        syscall($add_rule, $ruleset, 1, $rule, 0) == 0 or die "landlock of $directory: $!\n";
    }
    syscall($restrict_self, $ruleset, 0) == 0 or die "landlock: $!\n";
    syscall($SYS{close}, $ruleset);
}

sub apply_settings {
    %set = fields($_[0]);
    # bwrap limits the bytes of a tmpfs, but even an empty file costs the kernel a kilobyte.
    for (split /\n/, $set{tmpfs} // '') {
        my ($options, $path, $kind) = (split(/ /, $_, 2), 'tmpfs');
        syscall($SYS{mount}, $kind, $path, $kind, 32 | 4 | 2, $options) == 0 or die "mount of $path: $!\n";
    }
    guard_proc() if $set{guard_proc};
    # A user namespace inside the one that bwrap created: the guest agent's capabilities give it no power over anything,
    # but the policy, which has none, can neither trace it nor write to its descriptors.
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
    # A session keyring is inherited, and the host's may hold keys.
    syscall($SYS{keyctl}, 1, 0, 0, 0, 0);
    syscall($SYS{setsid});
    # Last: they refuse what was needed until here.
    confine_writes(split /\n/, $set{writable}) if $set{writable};
    install_filter(pack 'H*', $set{seccomp}) if $set{seccomp};
    $set{shell} //= '/bin/bash';
}

$SIG{PIPE} = 'IGNORE';
$SIG{HUP} = 'IGNORE' if $$ != 1;
binmode $_ for \*STDIN, \*STDOUT;
set_nonblocking($_) for \*STDIN, \*STDOUT;

while (1) {
    my ($readable, $writable, $wait) = ('', '', undef);
    vec($readable, 0, 1) = 1;
    vec($writable, 1, 1) = 1 if length $out;
    my $full = length $out > $HIGH;
    for my $command (values %commands) {
        vec($readable, fileno $command->{status}, 1) = 1 if $command->{status};
        if (!$full) { vec($readable, fileno $_->{handle}, 1) = 1 for values %{ $command->{streams} } }
        vec($writable, fileno $command->{input}, 1) = 1 if $command->{input} and length $command->{pending};
        if (exists $command->{code}) { my $left = $command->{until} - now(); $wait = min_defined($wait, $left < 0 ? 0 : $left) }
    }
    vec($readable, $_, 1) = 1 for keys %drain;
    if ($set{lease}) {
        my $left = $last_received + $set{lease} - now();
        shut_down() if $left < 0;
        $wait = min_defined($wait, $left);
    }
    if ($set{memory_mb} and %subreapers) { enforce_memory_limit(); $wait = min_defined($wait, $MEMORY_PAUSE) }
    select $readable, $writable, undef, $wait;

    if (vec($writable, 1, 1)) {
        my $put = syswrite STDOUT, $out, $CHUNK * 4;
        if (defined $put) { substr($out, 0, $put) = '' }
        elsif (!would_block()) { shut_down() }
    }
    for my $fd (keys %drain) {
        next if !vec($readable, $fd, 1);
        my $dropped;
        my $got = sysread $drain{$fd}, $dropped, $CHUNK;
        if (defined $got and !$got) { close delete $drain{$fd} }
    }
    for my $command (values %commands) {
        for my $type (keys %{ $command->{streams} }) {
            read_stream($command, $type) if vec($readable, fileno $command->{streams}{$type}{handle}, 1);
        }
        write_input($command) if $command->{input} and vec($writable, fileno $command->{input}, 1);
        read_status($command) if $command->{status} and vec($readable, fileno $command->{status}, 1);
        finish_if_ended($command);
    }
    if (vec($readable, 0, 1)) {
        my $got = sysread STDIN, $in, $CHUNK * 4, length $in;
        shut_down() if defined $got ? !$got : !would_block();
        $last_received = now();
        while (length $in >= 9) {
            my ($type, $number, $length) = unpack 'aNN', $in;
            last if length $in < 9 + $length;
            my $payload = substr $in, 9, $length;
            substr($in, 0, 9 + $length) = '';
            handle_frame($type, $number, $payload);
        }
    }
    reap();
}
