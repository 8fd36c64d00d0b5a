#include "tests/folders.h"

#include <cstdlib>

namespace ovq {

namespace {

// The environment's, for a program that runs elsewhere than it was built.
std::string Folder(const char* name, const char* built) {
  const char* folder = std::getenv(name);
  return folder != nullptr ? folder : built;
}

}  // namespace

std::string GoldenFolder() { return Folder("OVQ_GOLDEN_DIR", OVQ_GOLDEN_DIR); }

std::string ModelsFolder() { return Folder("OVQ_MODELS_DIR", OVQ_MODELS_DIR); }

}  // namespace ovq
