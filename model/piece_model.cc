#include "model/piece_model.h"

#include <dlfcn.h>

#include <filesystem>

namespace ovq::model {
namespace {

// Sanitizers refuse RTLD_DEEPBIND. No test of their builds has gRPC's protobuf and SentencePiece in
// one process.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL;
#else
constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND;
#endif

// Path of the module, beside the program. The loader's search would not do: under a sanitizer it
// starts from the sanitizer's own library.
std::string ModulePath() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  return (program.parent_path() / "libovq_pieces.so").string();
}

}  // namespace

std::optional<PieceModel> LoadPieces(const std::string& path, std::string* error) {
  void* module = dlopen(ModulePath().c_str(), kOpenFlags);  // for good
  void* entry = module ? dlsym(module, "ovq_load_pieces") : nullptr;
  if (!entry) {
    *error = dlerror();
    return std::nullopt;
  }
  PieceModel model;
  const auto load = reinterpret_cast<decltype(&ovq_load_pieces)>(entry);
  return load(path, &model, error) ? std::optional(std::move(model)) : std::nullopt;
}

}  // namespace ovq::model
