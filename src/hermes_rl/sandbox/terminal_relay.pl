# Between a terminal and the warden: makes the terminal carry bytes as they are, and never has more on its way to the
# host than the host's side can hold. Two words are its arguments; written as one they tell the host that all from here
# on is the warden's. From the host come frames: a type (one byte), a length (32 bits, network order), the payload.
#   D  bytes for the warden                 A  how many bytes the host has got (32 bits)
# The warden is at the end of this file. It ends when the terminal does, and this ends with it.
use strict;
use warnings;
use Errno qw(EAGAIN EINTR);
use POSIX ();

# Each piece that is written may reach the host in two messages, of which it is sent no more than 256 that it did not take.
my ($PIECE, $PIECES, $READ, $HIGH) = (2048, 64, 65536, 1 << 20);

unlink $0;
my $warden = do { local $/; <DATA> };
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
    exec 'perl', '-e', $warden or POSIX::_exit(127);
}
close $_ for $input, $output;
$_->blocking(0) for \*STDIN, \*STDOUT, $to, $from;
$SIG{PIPE} = 'IGNORE';

# What comes, what goes to the warden and to the host, how far the host has got, and where each piece on its way ends.
my ($in, $down, $up, $got, $sent, @ends) = ('', '', join('', @ARGV), 0, 0);
sub over { my ($done) = @_; return defined $done ? !$done : $! != EAGAIN && $! != EINTR }

while (1) {
    my ($readable, $writable) = ('', '');
    vec($readable, 0, 1) = 1 if length $down < $HIGH;
    vec($readable, fileno $from, 1) = 1 if length $up < $HIGH;
    vec($writable, 1, 1) = 1 if length $up and @ends < $PIECES;
    vec($writable, fileno $to, 1) = 1 if length $down;
    select $readable, $writable, undef, undef;
    if (vec($readable, 0, 1)) {
        last if over(sysread STDIN, $in, $READ, length $in);
        while (length $in >= 5) {
            my ($type, $length) = unpack 'aN', $in;
            last if length $in < 5 + $length;
            my $payload = substr $in, 5, $length;
            substr($in, 0, 5 + $length) = '';
            if ($type eq 'D') { $down .= $payload } else { $got += unpack 'N', $payload }
        }
        shift @ends while @ends and $ends[0] <= $got;
    }
    if (vec($readable, fileno $from, 1)) { last if over(sysread $from, $up, $READ, length $up) }
    if (vec($writable, fileno $to, 1)) {
        my $put = syswrite $to, $down, $READ;
        last if over($put);
        substr($down, 0, $put // 0) = '';
    }
    if (vec($writable, 1, 1)) {
        my $put = syswrite STDOUT, $up, $PIECE;
        last if over($put);
        if ($put) { substr($up, 0, $put) = ''; push @ends, $sent += $put }
    }
}
close $to;
waitpid $pid, 0;
