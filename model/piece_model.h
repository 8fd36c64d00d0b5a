// SentencePiece behind standard types: its header and abseil's cannot meet in one source file, both
// define absl::string_view.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace ovq {

// Immutable after Load; any thread.
class PieceModel {
 public:
  // Null and a reason in `error` if the file is no model.
  static std::unique_ptr<PieceModel> Load(const std::string& path, std::string* error);
  ~PieceModel();

  int32_t size() const;
  // False and a reason in `error` if the text cannot be encoded.
  bool Encode(std::string_view text, std::vector<int32_t>* ids, std::string* error) const;
  // The bytes a piece adds to a text: "▁" as a space, a byte piece as that byte, nothing for
  // control pieces. At the beginning of a text a leading space is left out, as SentencePiece's
  // Decode does.
  std::string Text(int32_t id, bool first) const;
  // A piece after which the text has begun.
  bool Begins(int32_t id) const;

 private:
  PieceModel();
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  bool drops_first_space_ = false;          // the model adds a space in front of a text
  bool drops_every_leading_space_ = false;  // it also removes superfluous spaces
};

}  // namespace ovq
