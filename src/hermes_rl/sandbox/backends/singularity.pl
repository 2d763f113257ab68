# Turns an Apptainer container into a sandbox. Runs before the guest agent, in the same process, while it is still root of
# the outer user namespace. Makes everything but /proc and terminals read-only, mounts size-limited tmpfs on the writable
# directories, and replaces a few files of /etc.
# Arguments: MB for the workspace and for /tmp (each), MB of shared memory, the workspace, the agent's uid, and the words
# `network` and `writable`, or empty; the rest are paths to hide. `writable` is for an image's setup, run by root: the image's files stay writable,
# and the capability to mount is dropped for good.
use strict;

{
    my ($disk, $shared, $workspace, $agent, $network, $writable, @hidden) = splice @ARGV;
    # Syscall 39 is getpid on x86_64 and fails on aarch64.
    my %sys = syscall(39, 0, 0) == $$
        ? (capget => 125, capset => 126, mount => 165, prctl => 157, umount2 => 166, unshare => 272)
        : (capget => 90, capset => 91, mount => 40, prctl => 167, umount2 => 39, unshare => 97);
    my %flag = (ro => 1, nosuid => 2, nodev => 4, noexec => 8, noatime => 1024, nodiratime => 2048, relatime => 1 << 21);
    my ($remount, $bind, $sys_admin) = (32, 4096, 21);

    my $mount = sub {
        my ($source, $target, $type, $flags, $data) = @_;
        syscall($sys{mount}, $source, $target, $type, $flags, $data) == 0 or die "hermes-rl: mount on $target: $!\n";
    };
    my $make_read_only = sub {
        my ($target, @options) = @_;
        my $flags = $remount | $bind | $flag{ro};
        $flags |= $flag{$_} // 0 for @options;
        $mount->('none', $target, 'none', $flags, '');
    };
    my $read_file = sub {
        open my $file, '<', $_[0] or return '';
        local $/;
        return <$file> // '';
    };

    my %seen;
    for my $line (reverse split /\n/, $read_file->('/proc/self/mountinfo')) {
        my ($target, $options) = (split / /, $line)[4, 5];
        $target =~ s/\\(\d{3})/chr oct $1/ge;
        next if $target =~ m{^/(proc|dev/pts)(/|\z)} or $seen{$target}++;
        if (!$writable or $target =~ m{^/dev(/|\z)} or $target eq '/etc/resolv.conf') { $make_read_only->($target, split /,/, $options) }
        # A setup changes its image's own files.
        elsif ($target =~ m{^/etc/}) { syscall($sys{umount2}, $target, 2) == 0 or die "hermes-rl: umount of $target: $!\n" }
    }
    # Kernel settings of the host, which root of a setup could change.
    for my $target (grep { -e } map { "/proc/$_" } qw(sys sysrq-trigger irq bus)) {
        $mount->($target, $target, 'none', $bind, '');
        $make_read_only->($target, qw(nosuid nodev noexec));
    }
    for my $tmpfs ([$workspace, $disk, '755'], ['/tmp', $disk, '1777'], ['/run', $shared, '755'], ['/dev/shm', $shared, '1777']) {
        my ($target, $size, $mode) = @$tmpfs;
        $mount->('tmpfs', $target, 'tmpfs', $flag{nosuid} | $flag{nodev}, "size=${size}m,mode=$mode") if -d $target and !-l $target;
    }
    # The sandbox's user cannot reach a path that does not exist for us.
    for my $target (grep { -e } @hidden) {
        if (-d $target) { $mount->('tmpfs', $target, 'tmpfs', $flag{ro} | $flag{nosuid} | $flag{nodev}, 'size=4k,mode=555') }
        else { $mount->('/dev/null', $target, 'none', $bind, '') }
    }
    my %etc;
    if (!$writable) {
        $etc{hosts} = "127.0.0.1 localhost sandbox\n::1 localhost\n";
        $etc{'resolv.conf'} = '' if !$network;
        for my $entry ([passwd => "agent:x:$agent:$agent:agent:$workspace:/bin/bash\n"], [group => "agent:x:$agent:\n"]) {
            my ($name, $line) = @$entry;
            my $users = $read_file->("/etc/$name");
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
        $mount->($made, $target, 'none', $bind, '');
        $make_read_only->($target, qw(nosuid nodev));
        unlink $made;
    }
    # Hide the host's cgroup names. Old kernels cannot.
    syscall($sys{unshare}, 0x02000000);
    chdir $workspace or die "hermes-rl: $workspace: $!\n";
    if ($writable) {
        # Drop it from the bounding, the ambient and all other sets.
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
