// The SentencePiece library itself, for tests. It is separate because its header and abseil's
// cannot be included in one source file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ovq::model::test {

// Writes prefix.model with exactly n_pieces pieces, single bytes among them. Ends the process if
// the library cannot.
void TrainPieces(const std::string& corpus, const std::string& prefix, int n_pieces);

// The result of the library's own Decode.
std::string ReferenceDecode(const std::string& model, const std::vector<int32_t>& ids);

}  // namespace ovq::model::test
