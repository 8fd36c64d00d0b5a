// Failed allocations, and threads that the system refuses. Libraries do not survive them, and a
// thread that ends by an exception leaves a call without an answer. So the process ends at once
// with a message, to be restarted.
#pragma once

namespace ovq {

// From this call on, a failed allocation ends the process with status 1 and a line on stderr. So
// does a std::system_error that nothing catches, such as a refused thread's, with its reason.
void EndWhenOutOfMemory();

}  // namespace ovq
