#include "tests/folders.h"

#include <cstdlib>

namespace ovq {

std::string GoldenFolder() {
  const char* folder = std::getenv("OVQ_GOLDEN_DIR");
  return folder != nullptr ? folder : OVQ_GOLDEN_DIR;
}

std::string ModelsFolder() { return OVQ_MODELS_DIR; }

}  // namespace ovq
