// Where the files of tests lie.
#pragma once

#include <string>

namespace ovq::test {

// tests/golden of the checkout, or the environment's OVQ_GOLDEN_DIR where the program runs on
// another machine than it was built on.
std::string GoldenFolder();
std::string ModelsFolder();  // models of the checkout

}  // namespace ovq::test
