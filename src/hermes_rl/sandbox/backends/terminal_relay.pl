# Relays between a terminal and the guest agent: puts the terminal into raw mode, and never has more in flight to the
# host than the host's side can buffer. Arguments: two words. Printed joined, they tell the host that everything after
# them comes from the guest agent. Frames from the host: a type (one byte), a length (32 bits, network order), payload.
#   D  bytes for the guest agent            A  bytes received by the host (32 bits)
# The guest agent's source follows __END__. It exits when the terminal closes, and this relay exits with it.
use strict;
use warnings;
use Errno qw(EAGAIN EINTR);
use POSIX ();

# Each chunk may reach the host as two messages; at most 256 messages may be unread there.
my ($CHUNK, $CHUNKS, $READ, $HIGH) = (2048, 64, 65536, 1 << 20);

unlink $0;
my $guest_agent = do { local $/; <DATA> };
my $terminal = POSIX::Termios->new;
$terminal->getattr(0) or die "hermes-rl: no terminal: $!\n";
$terminal->setiflag(0);
$terminal->setoflag(0);
$terminal->setlflag(0);
$terminal->setcflag($terminal->getcflag & ~POSIX::PARENB() | POSIX::CS8());
$terminal->setcc(POSIX::VMIN(), 1);
$terminal->setcc(POSIX::VTIME(), 0);
$terminal->setattr(0, POSIX::TCSANOW()) or die "hermes-rl: the terminal cannot be made raw: $!\n";

pipe my $input, my $to or die "hermes-rl: pipe: $!\n";
pipe my $from, my $output or die "hermes-rl: pipe: $!\n";
my $pid = fork // die "hermes-rl: fork: $!\n";
if (!$pid) {
    POSIX::dup2(fileno $input, 0);
    POSIX::dup2(fileno $output, 1);
    open STDERR, '>', '/dev/null';
    close $_ for $input, $to, $from, $output;
    %ENV = (PATH => $ENV{PATH} // '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin');
    exec 'perl', '-e', $guest_agent or POSIX::_exit(127);
}
close $_ for $input, $output;
$_->blocking(0) for \*STDIN, \*STDOUT, $to, $from;
$SIG{PIPE} = 'IGNORE';

# Input, queues to the guest agent and to the host, bytes received by the host, bytes sent, end of each chunk in flight.
my ($in, $down, $up, $acknowledged, $sent, @ends) = ('', '', join('', @ARGV), 0, 0);
sub closed { my ($done) = @_; return defined $done ? !$done : $! != EAGAIN && $! != EINTR }

while (1) {
    my ($readable, $writable) = ('', '');
    vec($readable, 0, 1) = 1 if length $down < $HIGH;
    vec($readable, fileno $from, 1) = 1 if length $up < $HIGH;
    vec($writable, 1, 1) = 1 if length $up and @ends < $CHUNKS;
    vec($writable, fileno $to, 1) = 1 if length $down;
    select $readable, $writable, undef, undef;
    if (vec($readable, 0, 1)) {
        last if closed(sysread STDIN, $in, $READ, length $in);
        while (length $in >= 5) {
            my ($type, $length) = unpack 'aN', $in;
            last if length $in < 5 + $length;
            my $payload = substr $in, 5, $length;
            substr($in, 0, 5 + $length) = '';
            if ($type eq 'D') { $down .= $payload } else { $acknowledged += unpack 'N', $payload }
        }
        shift @ends while @ends and $ends[0] <= $acknowledged;
    }
    if (vec($readable, fileno $from, 1)) { last if closed(sysread $from, $up, $READ, length $up) }
    if (vec($writable, fileno $to, 1)) {
        my $put = syswrite $to, $down, $READ;
        last if closed($put);
        substr($down, 0, $put // 0) = '';
    }
    if (vec($writable, 1, 1)) {
        my $put = syswrite STDOUT, $up, $CHUNK;
        last if closed($put);
        if ($put) { substr($up, 0, $put) = ''; push @ends, $sent += $put }
    }
}
close $to;
waitpid $pid, 0;
