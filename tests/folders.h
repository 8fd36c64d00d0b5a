// Paths of the tests' data files.
#pragma once

#include <string>

namespace ovq {

// GoldenFolder returns tests/golden of the checkout, or the environment variable OVQ_GOLDEN_DIR if
// the tests run on another machine than they were built on.
std::string GoldenFolder();
std::string ModelsFolder();  // the checkout's models

}  // namespace ovq
