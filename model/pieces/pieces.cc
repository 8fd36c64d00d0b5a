#include "model/pieces/pieces.h"

#include <sentencepiece_processor.h>

#include <exception>
#include <functional>
#include <memory>
#include <string_view>

namespace ovq::model {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // "▁"

bool StartsWithSpace(std::string_view piece) { return piece.substr(0, kSpace.size()) == kSpace; }

struct Pieces {
  sentencepiece::SentencePieceProcessor processor;
  bool drops_first_space = false;          // the model adds a space before a text
  bool drops_every_leading_space = false;  // it also removes superfluous spaces

  // Decode's treatment of leading spaces depends on the model's normalizer, which the library does
  // not expose; so it is tested by calling Decode.
  void TestSpaces() {
    const int space = processor.PieceToId(kSpace);
    for (int id = 0; id < processor.GetPieceSize(); ++id) {
      if (processor.IsControl(id) || !StartsWithSpace(processor.IdToPiece(id))) continue;
      const std::string text = processor.DecodeIds({id});
      drops_first_space = text.empty() || text.front() != ' ';
      break;
    }
    drops_every_leading_space = drops_first_space && !processor.IsUnknown(space) &&
                                processor.DecodeIds({space, space}).empty();
  }

  bool Encode(std::string_view text, std::vector<int32_t>* ids, std::string* error) const {
    std::vector<int> pieces;
    const auto status = processor.Encode(text, &pieces);
    if (!status.ok()) *error = status.ToString();
    ids->insert(ids->end(), pieces.begin(), pieces.end());
    return status.ok();
  }

  std::string Text(int32_t id, bool first) const {
    if (id < 0 || id >= processor.GetPieceSize() || processor.IsControl(id)) return "";
    if (processor.IsUnknown(id)) return processor.DecodeIds({id});
    std::string_view piece = processor.IdToPiece(id);
    if (processor.IsByte(id)) {  // "<0xE2>"
      return {static_cast<char>(std::stoi(std::string(piece.substr(3, 2)), nullptr, 16))};
    }
    if (first && drops_first_space && StartsWithSpace(piece)) piece.remove_prefix(kSpace.size());
    std::string text;
    for (size_t at; (at = piece.find(kSpace)) != std::string_view::npos;) {
      text.append(piece.substr(0, at)).push_back(' ');
      piece.remove_prefix(at + kSpace.size());
    }
    return text.append(piece);
  }

  std::map<int32_t, std::string> Controls() const {
    std::map<int32_t, std::string> controls;
    for (int id = 0; id < processor.GetPieceSize(); ++id) {
      if (processor.IsControl(id)) controls.emplace(id, processor.IdToPiece(id));
    }
    return controls;
  }

  bool Begins(int32_t id) const {
    if (!Text(id, /*first=*/true).empty()) return true;
    return !drops_every_leading_space && !Text(id, /*first=*/false).empty();
  }
};

constexpr char kExpectedModel[] = "expected a SentencePiece model, but its library says: ";

}  // namespace
}  // namespace ovq::model

// The library refuses some files by its status, and others by an exception of one of its libraries.
// Neither says what it expected.
extern "C" bool ovq_load_pieces(const std::string& path, ovq::model::PieceModel* model,
                                std::string* error) try {
  const auto pieces = std::make_shared<ovq::model::Pieces>();
  const auto status = pieces->processor.Load(path);
  if (!status.ok()) {
    *error = std::string(ovq::model::kExpectedModel) + status.ToString();
    return false;
  }
  pieces->TestSpaces();
  *model = {.size = pieces->processor.GetPieceSize(),
            .controls = pieces->Controls(),
            .encode = std::bind_front(&ovq::model::Pieces::Encode, pieces),
            .text = std::bind_front(&ovq::model::Pieces::Text, pieces),
            .begins = std::bind_front(&ovq::model::Pieces::Begins, pieces)};
  return true;
} catch (const std::exception& thrown) {
  *error = std::string(ovq::model::kExpectedModel) + thrown.what();
  return false;
}
