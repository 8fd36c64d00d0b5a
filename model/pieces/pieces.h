// What the module libovq_pieces.so offers: SentencePiece, kept apart from the rest of the process.
// Debian's libsentencepiece contains a protobuf of its own. Linked into one program, it and the one
// that gRPC uses break each other, so it is loaded as a module that looks up its symbols in itself
// first. Its header and abseil's cannot be included in one source file either.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ovq {

struct Pieces;  // a loaded model

// The functions of model/piece_model.h, over a model that `load` gave and `free` ends.
struct PiecesApi {
  Pieces* (*load)(const std::string& path, std::string* error);
  void (*free)(Pieces* model);
  int32_t (*size)(const Pieces& model);
  bool (*encode)(const Pieces& model, std::string_view text, std::vector<int32_t>* ids,
                 std::string* error);
  std::string (*text)(const Pieces& model, int32_t id, bool first);
  bool (*begins)(const Pieces& model, int32_t id);
};

}  // namespace ovq

extern "C" const ovq::PiecesApi* ovq_pieces_api();
