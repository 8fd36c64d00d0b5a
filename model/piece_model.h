// SentencePiece models, loaded through the module libovq_pieces.so (model/pieces/pieces.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::model {

struct Pieces;
struct PiecesApi;

// Immutable after Load; any thread.
class PieceModel {
 public:
  // Null, with a reason in `error`, if the file is not a model or the module is missing. The module
  // lies beside the program.
  static std::unique_ptr<PieceModel> Load(const std::string& path, std::string* error);
  ~PieceModel();
  PieceModel(const PieceModel&) = delete;
  PieceModel& operator=(const PieceModel&) = delete;

  int32_t size() const;
  // False, with a reason in `error`, if the text cannot be encoded.
  bool Encode(std::string_view text, std::vector<int32_t>* ids, std::string* error) const;
  // The bytes a piece adds to a text: "▁" as a space, a byte piece as that byte, nothing for
  // control pieces. With `first`, a leading space is left out, as SentencePiece's Decode does at
  // the beginning of a text.
  std::string Text(int32_t id, bool first) const;
  // Whether a text has begun after this piece.
  bool Begins(int32_t id) const;

 private:
  PieceModel(const PiecesApi* api, Pieces* model) : api_(api), model_(model) {}
  const PiecesApi* api_;
  Pieces* model_;
};

}  // namespace ovq::model
