# The sandbox's end of an outlet: a port on the sandbox's own loopback, each connection to which is carried to the host on
# our standard output and input. In frames: a type (one byte), a connection's number and a length (32 bits each, network
# order), the payload.
#
# To the host                                       From the host
#   L 0: listening; the port (16 bits)                D  number: bytes for it
#   O number: somebody connected                      W  number: how many of its bytes were taken (32 bits)
#   D number: bytes of it                             X  number: the other side ended
#   X number: it hung up
#
# It ends with its input. As in warden.pl: Perl, because every image has it, and no module.
use strict;

my ($EINTR, $EAGAIN, $GETFL, $SETFL, $NONBLOCK) = (4, 11, 3, 4, 04000);
my ($PIECE, $WINDOW, $HIGH, $MOST, $LINGER) = (65536, 1 << 18, 1 << 20, 256, 2);

my %line;    # number => handle, bytes to write, how many of those read were not taken, whether it is ending
my ($count, $in, $up) = (0, '', '');

sub again { return $! == $EAGAIN || $! == $EINTR }
sub no_wait { fcntl $_[0], $SETFL, fcntl($_[0], $GETFL, 0) | $NONBLOCK }
sub send_frame { my ($type, $number, $payload) = @_; $up .= pack('aNN', $type, $number, length $payload) . $payload }
sub hang_up { my ($number) = @_; close $line{$number}{handle}; delete $line{$number} }

socket my $door, 2, 1, 0 or die "socket: $!\n";
bind $door, pack 'S n a4 x8', 2, 0, "\x7f\0\0\1" or die "a port on 127.0.0.1: $!\n";
listen $door, 512 or die "listen: $!\n";
$SIG{PIPE} = 'IGNORE';
binmode $_ for \*STDIN, \*STDOUT;
no_wait($_) for \*STDIN, \*STDOUT, $door;
send_frame('L', 0, pack 'n', (unpack 'S n', getsockname $door)[1]);

sub answer {
    accept my $handle, $door or return;
    no_wait($handle);
    setsockopt $handle, 6, 1, 1;
    $line{ ++$count } = { handle => $handle, out => '', untaken => 0 };
    send_frame('O', $count, '');
}

sub hear {
    my ($number) = @_;
    my $one = $line{$number};
    my $data;
    my $got = sysread $one->{handle}, $data, $PIECE;
    return if !defined $got and again();
    if (!$got) { send_frame('X', $number, '') if !$one->{ending}; return hang_up($number) }
    return if $one->{ending};
    $one->{untaken} += $got;
    send_frame('D', $number, $data);
}

sub pass_on {
    my ($number) = @_;
    my $one = $line{$number};
    my $put = syswrite $one->{handle}, $one->{out}, $PIECE;
    if (defined $put) { substr($one->{out}, 0, $put) = '' }
    elsif (!again()) { send_frame('X', $number, '') if !$one->{ending}; hang_up($number) }
}

# To close at once on somebody who still sends would take away from them what they have not read yet.
sub finish {
    my ($one) = @_;
    return if !$one->{ending} or length $one->{out} or $one->{until};
    shutdown $one->{handle}, 1;
    $one->{until} = time + $LINGER;
}

sub heed {
    my ($type, $number, $payload) = @_;
    my $one = $line{$number} or return;
    if    ($type eq 'D') { $one->{out} .= $payload }
    elsif ($type eq 'W') { $one->{untaken} -= unpack 'N', $payload }
    elsif ($type eq 'X') { $one->{ending} = 1 }
}

while (1) {
    my ($readable, $writable, $wait) = ('', '', undef);
    vec($readable, 0, 1) = 1;
    vec($readable, fileno $door, 1) = 1 if keys %line < $MOST;
    vec($writable, 1, 1) = 1 if length $up;
    for my $one (values %line) {
        my $fd = fileno $one->{handle};
        vec($readable, $fd, 1) = 1 if $one->{ending} or $one->{untaken} < $WINDOW and length $up < $HIGH;
        vec($writable, $fd, 1) = 1 if length $one->{out};
        $wait = 1 if $one->{until};
    }
    select $readable, $writable, undef, $wait;

    if (vec($writable, 1, 1)) {
        my $put = syswrite STDOUT, $up, $PIECE;
        if (defined $put) { substr($up, 0, $put) = '' }
        elsif (!again()) { last }
    }
    for my $number (keys %line) {
        my $fd = fileno $line{$number}{handle};
        hear($number) if vec($readable, $fd, 1);
        pass_on($number) if $line{$number} and vec($writable, $fd, 1);
    }
    answer() if vec($readable, fileno $door, 1);
    if (vec($readable, 0, 1)) {
        my $got = sysread STDIN, $in, $PIECE * 4, length $in;
        last if defined $got ? !$got : !again();
        while (length $in >= 9) {
            my ($type, $number, $length) = unpack 'aNN', $in;
            last if length $in < 9 + $length;
            my $payload = substr $in, 9, $length;
            substr($in, 0, 9 + $length) = '';
            heed($type, $number, $payload);
        }
    }
    for my $number (keys %line) {
        finish($line{$number});
        hang_up($number) if $line{$number}{until} and $line{$number}{until} < time;
    }
}
