# The sandbox's end of a port forward: listens on the sandbox's loopback and multiplexes the connections to the host over
# our standard input and output. Frames: a type (one byte), a connection number and a length (32 bits each, network
# order), the payload.
#
# To the host                                       From the host
#   L 0: listening; the port (16 bits)                D  number: data
#   O number: connection opened                       W  number: bytes consumed by the host (32 bits)
#   D number: data                                    X  number: the endpoint closed
#   X number: connection closed
#
# Exits at the end of its input. As in guest_agent.pl: Perl, because every image has it, and no modules.
use strict;

my ($EINTR, $EAGAIN, $GETFL, $SETFL, $NONBLOCK) = (4, 11, 3, 4, 04000);
my ($CHUNK, $WINDOW, $HIGH, $MAX_CONNECTIONS, $LINGER) = (65536, 1 << 18, 1 << 20, 256, 2);

my %connections;    # number => handle, bytes to write, bytes not yet consumed by the host, whether it is closing
my ($count, $in, $up) = (0, '', '');

sub would_block { return $! == $EAGAIN || $! == $EINTR }
sub set_nonblocking { fcntl $_[0], $SETFL, fcntl($_[0], $GETFL, 0) | $NONBLOCK }
sub send_frame { my ($type, $number, $payload) = @_; $up .= pack('aNN', $type, $number, length $payload) . $payload }
sub close_connection { my ($number) = @_; close $connections{$number}{handle}; delete $connections{$number} }

socket my $listener, 2, 1, 0 or die "socket: $!\n";
bind $listener, pack 'S n a4 x8', 2, 0, "\x7f\0\0\1" or die "a port on 127.0.0.1: $!\n";
listen $listener, 512 or die "listen: $!\n";
$SIG{PIPE} = 'IGNORE';
binmode $_ for \*STDIN, \*STDOUT;
set_nonblocking($_) for \*STDIN, \*STDOUT, $listener;
send_frame('L', 0, pack 'n', (unpack 'S n', getsockname $listener)[1]);

sub accept_connection {
    accept my $handle, $listener or return;
    set_nonblocking($handle);
    setsockopt $handle, 6, 1, 1;
    $connections{ ++$count } = { handle => $handle, out => '', unconsumed => 0 };
    send_frame('O', $count, '');
}

sub read_connection {
    my ($number) = @_;
    my $connection = $connections{$number};
    my $data;
    my $got = sysread $connection->{handle}, $data, $CHUNK;
    return if !defined $got and would_block();
    if (!$got) { send_frame('X', $number, '') if !$connection->{closing}; return close_connection($number) }
    return if $connection->{closing};
    $connection->{unconsumed} += $got;
    send_frame('D', $number, $data);
}

sub write_connection {
    my ($number) = @_;
    my $connection = $connections{$number};
    my $put = syswrite $connection->{handle}, $connection->{out}, $CHUNK;
    if (defined $put) { substr($connection->{out}, 0, $put) = '' }
    elsif (!would_block()) { send_frame('X', $number, '') if !$connection->{closing}; close_connection($number) }
}

# Closing at once on a peer that still sends would reset the connection and discard what it has not read yet.
sub finish {
    my ($connection) = @_;
    return if !$connection->{closing} or length $connection->{out} or $connection->{until};
    shutdown $connection->{handle}, 1;
    $connection->{until} = time + $LINGER;
}

sub handle_frame {
    my ($type, $number, $payload) = @_;
    my $connection = $connections{$number} or return;
    if    ($type eq 'D') { $connection->{out} .= $payload }
    elsif ($type eq 'W') { $connection->{unconsumed} -= unpack 'N', $payload }
    elsif ($type eq 'X') { $connection->{closing} = 1 }
}

while (1) {
    my ($readable, $writable, $wait) = ('', '', undef);
    vec($readable, 0, 1) = 1;
    vec($readable, fileno $listener, 1) = 1 if keys %connections < $MAX_CONNECTIONS;
    vec($writable, 1, 1) = 1 if length $up;
    for my $connection (values %connections) {
        my $fd = fileno $connection->{handle};
        vec($readable, $fd, 1) = 1 if $connection->{closing} or $connection->{unconsumed} < $WINDOW and length $up < $HIGH;
        vec($writable, $fd, 1) = 1 if length $connection->{out};
        $wait = 1 if $connection->{until};
    }
    select $readable, $writable, undef, $wait;

    if (vec($writable, 1, 1)) {
        my $put = syswrite STDOUT, $up, $CHUNK;
        if (defined $put) { substr($up, 0, $put) = '' }
        elsif (!would_block()) { last }
    }
    for my $number (keys %connections) {
        my $fd = fileno $connections{$number}{handle};
        read_connection($number) if vec($readable, $fd, 1);
        write_connection($number) if $connections{$number} and vec($writable, $fd, 1);
    }
    accept_connection() if vec($readable, fileno $listener, 1);
    if (vec($readable, 0, 1)) {
        my $got = sysread STDIN, $in, $CHUNK * 4, length $in;
        last if defined $got ? !$got : !would_block();
        while (length $in >= 9) {
            my ($type, $number, $length) = unpack 'aNN', $in;
            last if length $in < 9 + $length;
            my $payload = substr $in, 9, $length;
            substr($in, 0, 9 + $length) = '';
            handle_frame($type, $number, $payload);
        }
    }
    for my $number (keys %connections) {
        finish($connections{$number});
        close_connection($number) if $connections{$number}{until} and $connections{$number}{until} < time;
    }
}
