// Ports for processes that a test starts, and starts again at the same port.
#pragma once

#include <netinet/in.h>

namespace ovq::store::test {

sockaddr_in Loopback(int port);

// Returns a port of the loopback that nobody has, that no other test is given while this process
// runs, and that no outgoing connection is given: a server that is started again at its port would
// find such a connection there. tests/process/free_port.py gives ports by the same claims.
int FreePort();

}  // namespace ovq::store::test
