# Searches every readable file of a sandbox for byte strings, the smallest files first, within a number of seconds.
# Arguments: seconds. Standard input: one string per line, in hexadecimal.
# Prints `hit NUMBERS PATH` for a file that contains some of them (their line numbers, from 0, and the path, both without
# white space), then `searched FILES BYTES OF-FILES OF-BYTES`.
use strict;

my ($seconds, $CHUNK, $MAX_HITS) = ($ARGV[0], 1 << 20, 200);
my $end = time + $seconds;
my @probes = map { my $line = $_; chomp $line; pack 'H*', $line } <STDIN>;
my ($any) = map { qr/$_/ } join '|', map { quotemeta } @probes;
my $overlap = 0;
for (@probes) { $overlap = length if length > $overlap }

# A file that has several names, or is mounted twice, is read once.
my (@files, %seen);
my @folders = ('/');
while (defined(my $folder = shift @folders)) {
    next if $folder =~ m{^/(proc|sys)\z} or time >= $end;
    opendir my $entries, $folder or next;
    for my $name (readdir $entries) {
        next if $name eq '.' or $name eq '..';
        my $path = $folder eq '/' ? "/$name" : "$folder/$name";
        my ($device, $inode, $size) = (lstat $path)[0, 1, 7];
        if    (-d _) { push @folders, $path }
        elsif (-f _ and $size and !$seen{"$device $inode"}++ and -r $path) { push @files, [$size, $path] }
    }
}
@files = sort { $a->[0] <=> $b->[0] } @files;

my ($read, $bytes, $all_bytes, $hits) = (0, 0, 0, 0);
$all_bytes += $_->[0] for @files;
for my $file (@files) {
    my ($size, $path) = @$file;
    last if time >= $end or $hits == $MAX_HITS;
    open my $handle, '<:raw', $path or next;
    my ($data, $got, %found) = ('', 1);
    while (time < $end and $got = sysread $handle, $data, $CHUNK, length $data) {
        if ($data =~ $any) { index($data, $probes[$_]) >= 0 and $found{$_} = 1 for 0 .. $#probes }
        $data = length $data > $overlap ? substr $data, -$overlap : $data;
    }
    if (!$got) { $read++; $bytes += $size }
    next if !%found;
    $hits++;
    $path =~ s/([^\x21-\x24\x26-\x7e])/sprintf '%%%02X', ord $1/ge;
    print 'hit ', join(',', sort { $a <=> $b } keys %found), " $path\n";
}
print "searched $read $bytes ", scalar @files, " $all_bytes\n";
