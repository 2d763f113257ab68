# Launches a sandbox on this machine: join the control groups, switch to the owner's uid, enter a user namespace in which
# the owner is root and may create one more, then exec the program. One process instead of a chain of four.
# Arguments: cgroup directories, one per line; the owner's uid, or empty to keep ours; the word `namespace`, or empty for
# no namespace; the program and its arguments.
use strict;

my ($groups, $owner, $namespace, @program) = @ARGV;
# As in guest_agent.pl: no modules. Syscall 39 is getpid on x86_64 only, which tells the architecture.
my ($prctl, $unshare, $setgroups, $setgid, $setuid) =
    syscall(39, 0, 0) == $$ ? (157, 272, 116, 106, 105) : (167, 97, 159, 144, 146);

sub put {
    my ($path, $text) = @_;
    open my $file, '>', $path or die "hermes-rl: $path: $!\n";
    defined syswrite $file, $text or die "hermes-rl: $path: $!\n";
}

put("$_/cgroup.procs", '0') for split /\n/, $groups;
if (length $owner) {
    my ($id, $none) = ($owner + 0, '');
    syscall($setgroups, 0, $none) == 0 && syscall($setgid, $id) == 0 && syscall($setuid, $id) == 0
        or die "hermes-rl: cannot become user $owner: $!\n";
}
if ($namespace) {
    # A process that changed its uid is not dumpable, and cannot write to its own /proc/self.
    syscall($prctl, 4, 1, 0, 0, 0);
    syscall($prctl, 38, 1, 0, 0, 0);
    my ($uid, $gid) = ($>, $) + 0);
    syscall($unshare, 0x10000000) == 0 or die "hermes-rl: unshare of a user namespace: $!\n";
    put('/proc/self/setgroups', 'deny');
    put('/proc/self/uid_map', "0 $uid 1");
    put('/proc/self/gid_map', "0 $gid 1");
    put('/proc/sys/user/max_user_namespaces', '1');
}
exec { $program[0] } @program or die "hermes-rl: cannot start $program[0]: $!\n";
