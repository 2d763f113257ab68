# Removes what is left of one sandbox: kills its processes, then deletes its directory. The directory's path is the only
# line on standard input; as an argument it would make this program look like part of the sandbox.
# A process belongs to the sandbox if its last two arguments say so (the guest agent and its subreapers), if its HOME is
# the workspace, if its working directory is below the directory, or if it descends from such a process. The directory
# name is random, so no other process matches.
use strict;
use warnings;

chomp(my $directory = <STDIN> // '');
$directory =~ m{^/.*hermes-rl-[0-9a-f]{16}\z}s or die "$directory is not a sandbox directory\n";

sub text {
    open my $file, '<', $_[0] or return '';
    local $/;
    return <$file> // '';
}

sub belongs {
    my ($pid) = @_;
    my @arguments = split /\0/, text("/proc/$pid/cmdline");
    return 1 if @arguments > 2 and $arguments[-2] eq 'hermes-rl-sandbox' and $arguments[-1] eq $directory;
    return 1 if grep { $_ eq "HOME=$directory/workspace" } split /\0/, text("/proc/$pid/environ");
    return index((readlink "/proc/$pid/cwd") // '', "$directory/") == 0;
}

sub left {
    my (%ours, %parent);
    opendir my $proc, '/proc' or die "/proc: $!\n";
    for my $pid (grep { /^\d+$/ and $_ != $$ } readdir $proc) {
        text("/proc/$pid/stat") =~ /.*\) [^ZX] (\d+)/s or next;
        $parent{$pid} = $1;
        $ours{$pid} = 1 if belongs($pid);
    }
    while (my @more = grep { !$ours{$_} and $ours{ $parent{$_} } } keys %parent) { @ours{@more} = (1) x @more }
    return keys %ours;
}

for my $round (1 .. 200) {
    my @left = left() or last;
    die "processes @left would not die\n" if $round == 200;
    kill KILL => @left;
    select undef, undef, undef, 0.001 * ($round < 20 ? $round : 20);
}
# A user who is not root must first restore the permissions of directories that the policy closed.
system '/bin/sh', '-c', 'rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwX -- "$1"; rm -rf -- "$1"; }', 'sh', $directory;
exit($? ? 1 : 0);
