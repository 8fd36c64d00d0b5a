// Loads SentencePiece models through the module libovq_pieces.so (model/pieces/pieces.h).
#pragma once

#include <optional>
#include <string>

#include "model/pieces/pieces.h"

namespace ovq::model {

// Empty, with a reason in `error`, if the file is not a model or the module, which lies beside the
// program, is missing.
std::optional<PieceModel> LoadPieces(const std::string& path, std::string* error);

}  // namespace ovq::model
