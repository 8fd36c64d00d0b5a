// The interface of the module libovq_pieces.so: SentencePiece, isolated from the rest of the
// process. Debian's libsentencepiece contains a protobuf of its own, which conflicts with gRPC's in
// one program. So it is loaded as a module that resolves symbols in itself first. Its header and
// abseil's cannot be included in one source file either.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ovq::model {

// A SentencePiece model. Its functions hold the model; any thread may call them.
struct PieceModel {
  int32_t size = 0;
  std::map<int32_t, std::string> controls;  // control pieces, such as "<s>", by id
  // Appends ids. False, with a reason in `error`, if the text cannot be encoded.
  std::function<bool(std::string_view text, std::vector<int32_t>* ids, std::string* error)> encode;
  // The bytes a piece adds to a text: "▁" as a space, a byte piece as that byte, nothing for
  // control pieces. With `first`, a leading space is left out, as SentencePiece's Decode does at
  // the beginning of a text.
  std::function<std::string(int32_t id, bool first)> text;
  // Whether a text has begun after this piece.
  std::function<bool(int32_t id)> begins;
};

}  // namespace ovq::model

// The module's entry. False, with a reason in `error`, if the file is not a model.
extern "C" bool ovq_load_pieces(const std::string& path, ovq::model::PieceModel* model,
                                std::string* error);
