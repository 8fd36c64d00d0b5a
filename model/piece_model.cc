#include "model/piece_model.h"

#include <dlfcn.h>

#include <filesystem>

#include "model/pieces/pieces.h"

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

// Loads the module, for good. Null, with a reason in `error`, if that fails.
const PiecesApi* Module(std::string* error) {
  void* module = dlopen(ModulePath().c_str(), kOpenFlags);
  void* entry = module ? dlsym(module, "ovq_pieces_api") : nullptr;
  if (!entry) {
    *error = dlerror();
    return nullptr;
  }
  return reinterpret_cast<decltype(&ovq_pieces_api)>(entry)();
}

}  // namespace

std::unique_ptr<PieceModel> PieceModel::Load(const std::string& path, std::string* error) {
  const PiecesApi* api = Module(error);
  Pieces* model = api ? api->load(path, error) : nullptr;
  return std::unique_ptr<PieceModel>(model ? new PieceModel(api, model) : nullptr);
}

PieceModel::~PieceModel() { api_->free(model_); }

int32_t PieceModel::size() const { return api_->size(*model_); }

bool PieceModel::Encode(std::string_view text, std::vector<int32_t>* ids,
                        std::string* error) const {
  return api_->encode(*model_, text, ids, error);
}

std::string PieceModel::Text(int32_t id, bool first) const {
  return api_->text(*model_, id, first);
}

bool PieceModel::Begins(int32_t id) const { return api_->begins(*model_, id); }

}  // namespace ovq::model
