# What a container lacks to be a sandbox; runs in front of the warden, in the same process, while that still is root of
# the outer user namespace. Everything but /proc and terminals becomes read-only, the writable places are kept in memory
# and bounded, and the few files of /etc are ours.
# Arguments: megabytes of the workspace and of /tmp each, megabytes of shared memory, the workspace, the agent's number,
# and the words `network` and `writable` or nothing in their place. `writable` is for an image's setup, run by root: the
# image's files stay writable, and the right to mount is given up for good.
use strict;

{
    my ($disk, $shared, $workspace, $agent, $network, $writable) = splice @ARGV;
    # A call that is getpid on x86_64 and fails on aarch64 tells the two apart.
    my %sys = syscall(39, 0, 0) == $$
        ? (capget => 125, capset => 126, mount => 165, prctl => 157, umount2 => 166, unshare => 272)
        : (capget => 90, capset => 91, mount => 40, prctl => 167, umount2 => 39, unshare => 97);
    my %flag = (ro => 1, nosuid => 2, nodev => 4, noexec => 8, noatime => 1024, nodiratime => 2048, relatime => 1 << 21);
    my ($remount, $bind, $sys_admin) = (32, 4096, 21);

    my $on = sub {
        my ($source, $target, $type, $flags, $data) = @_;
        syscall($sys{mount}, $source, $target, $type, $flags, $data) == 0 or die "hermes-rl: mount on $target: $!\n";
    };
    my $close = sub {
        my ($target, @options) = @_;
        my $flags = $remount | $bind | $flag{ro};
        $flags |= $flag{$_} // 0 for @options;
        $on->('none', $target, 'none', $flags, '');
    };
    my $text = sub {
        open my $file, '<', $_[0] or return '';
        local $/;
        return <$file> // '';
    };

    my %seen;
    for my $line (reverse split /\n/, $text->('/proc/self/mountinfo')) {
        my ($target, $options) = (split / /, $line)[4, 5];
        $target =~ s/\\(\d{3})/chr oct $1/ge;
        next if $target =~ m{^/(proc|dev/pts)(/|\z)} or $seen{$target}++;
        if (!$writable or $target =~ m{^/dev(/|\z)} or $target eq '/etc/resolv.conf') { $close->($target, split /,/, $options) }
        # A setup changes its image's own files.
        elsif ($target =~ m{^/etc/}) { syscall($sys{umount2}, $target, 2) == 0 or die "hermes-rl: umount of $target: $!\n" }
    }
    # The host's settings, which root of a setup could change.
    for my $target (grep { -e } map { "/proc/$_" } qw(sys sysrq-trigger irq bus)) {
        $on->($target, $target, 'none', $bind, '');
        $close->($target, qw(nosuid nodev noexec));
    }
    for my $place ([$workspace, $disk, '755'], ['/tmp', $disk, '1777'], ['/run', $shared, '755'], ['/dev/shm', $shared, '1777']) {
        my ($target, $size, $mode) = @$place;
        $on->('tmpfs', $target, 'tmpfs', $flag{nosuid} | $flag{nodev}, "size=${size}m,mode=$mode") if -d $target and !-l $target;
    }
    my %etc;
    if (!$writable) {
        $etc{hosts} = "127.0.0.1 localhost sandbox\n::1 localhost\n";
        $etc{'resolv.conf'} = '' if !$network;
        for my $entry ([passwd => "agent:x:$agent:$agent:agent:$workspace:/bin/bash\n"], [group => "agent:x:$agent:\n"]) {
            my ($name, $line) = @$entry;
            my $users = $text->("/etc/$name");
            $users .= "\n" if length $users and $users !~ /\n\z/;
            $etc{$name} = $users . $line if $users !~ /^[^:\n]*:[^:\n]*:$agent:/m;
        }
    }
    for my $name (sort keys %etc) {
        my ($target, $made) = ("/etc/$name", '/tmp/hermes-rl-etc');
        next if -l $target or !-e $target;
        open my $file, '>', $made or die "hermes-rl: $made: $!\n";
        print $file $etc{$name};
        close $file or die "hermes-rl: $made: $!\n";
        $on->($made, $target, 'none', $bind, '');
        $close->($target, qw(nosuid nodev));
        unlink $made;
    }
    # The host's names of control groups are nobody's business; old kernels cannot hide them.
    syscall($sys{unshare}, 0x02000000);
    chdir $workspace or die "hermes-rl: $workspace: $!\n";
    if ($writable) {
        # Of the bounding, the ambient and all other sets.
        my ($version, $sets) = (pack('LL', 0x20080522, 0), "\0" x 24);
        syscall($sys{prctl}, 24, $sys_admin, 0, 0, 0) == 0
            and syscall($sys{prctl}, 47, 4, 0, 0, 0) == 0
            and syscall($sys{capget}, $version, $sets) == 0
            or die "hermes-rl: capabilities: $!\n";
        my @sets = unpack 'L6', $sets;
        my $kept = pack 'L6', (map { $_ & ~(1 << $sys_admin) } @sets[0, 1]), 0, @sets[3, 4], 0;
        syscall($sys{capset}, $version, $kept) == 0 or die "hermes-rl: capabilities: $!\n";
    }
}
