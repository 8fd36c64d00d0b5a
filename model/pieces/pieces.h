// The interface of the module libovq_pieces.so: SentencePiece, isolated from the rest of the
// process. Debian's libsentencepiece contains a protobuf of its own, which conflicts with gRPC's in
// one program. So it is loaded as a module that resolves symbols in itself first. Its header and
// abseil's cannot be included in one source file either.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::model {

struct Pieces;  // a loaded model

// The functions behind model/piece_model.h, on a model made by `load` and freed by `free`.
struct PiecesApi {
  Pieces* (*load)(const std::string& path, std::string* error);
  void (*free)(Pieces* model);
  int32_t (*size)(const Pieces& model);
  bool (*encode)(const Pieces& model, std::string_view text, std::vector<int32_t>* ids,
                 std::string* error);
  std::string (*text)(const Pieces& model, int32_t id, bool first);
  bool (*begins)(const Pieces& model, int32_t id);
};

}  // namespace ovq::model

extern "C" const ovq::model::PiecesApi* ovq_pieces_api();
