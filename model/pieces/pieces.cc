#include "model/pieces/pieces.h"

#include <sentencepiece_processor.h>

#include <exception>
#include <memory>
#include <string_view>

namespace ovq::model {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // "▁"

bool StartsWithSpace(std::string_view piece) { return piece.substr(0, kSpace.size()) == kSpace; }

}  // namespace

struct Pieces {
  sentencepiece::SentencePieceProcessor processor;
  bool drops_first_space = false;          // the model adds a space before a text
  bool drops_every_leading_space = false;  // it also removes superfluous spaces
};

namespace {

Pieces* LoadOrThrow(const std::string& path, std::string* error) {
  auto model = std::make_unique<Pieces>();
  const sentencepiece::SentencePieceProcessor& processor = model->processor;
  const auto status = model->processor.Load(path);
  if (!status.ok()) {
    *error = status.ToString();
    return nullptr;
  }
  // Decode's treatment of leading spaces depends on the model's normalizer, which the library does
  // not expose; so it is tested by calling Decode.
  const int space = processor.PieceToId(kSpace);
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    if (processor.IsControl(id) || !StartsWithSpace(processor.IdToPiece(id))) continue;
    const std::string text = processor.DecodeIds({id});
    model->drops_first_space = text.empty() || text.front() != ' ';
    break;
  }
  model->drops_every_leading_space = model->drops_first_space && !processor.IsUnknown(space) &&
                                     processor.DecodeIds({space, space}).empty();
  return model.release();
}

// The library refuses some files by its status, and others by an exception of one of its libraries.
Pieces* Load(const std::string& path, std::string* error) try {
  return LoadOrThrow(path, error);
} catch (const std::exception& thrown) {
  *error = thrown.what();
  return nullptr;
}

void Free(Pieces* model) { delete model; }

int32_t Size(const Pieces& model) { return model.processor.GetPieceSize(); }

bool Encode(const Pieces& model, std::string_view text, std::vector<int32_t>* ids,
            std::string* error) {
  std::vector<int> pieces;
  const auto status = model.processor.Encode(text, &pieces);
  if (!status.ok()) {
    *error = status.ToString();
    return false;
  }
  ids->insert(ids->end(), pieces.begin(), pieces.end());
  return true;
}

std::string Text(const Pieces& model, int32_t id, bool first) {
  if (id < 0 || id >= Size(model) || model.processor.IsControl(id)) return "";
  if (model.processor.IsUnknown(id)) return model.processor.DecodeIds({id});
  std::string_view piece = model.processor.IdToPiece(id);
  if (model.processor.IsByte(id)) {  // "<0xE2>"
    return std::string(1,
                       static_cast<char>(std::stoi(std::string(piece.substr(3, 2)), nullptr, 16)));
  }
  if (first && model.drops_first_space && StartsWithSpace(piece))
    piece.remove_prefix(kSpace.size());
  std::string text;
  while (!piece.empty()) {
    const size_t run = std::min(piece.find(kSpace), piece.size());
    text += piece.substr(0, run);
    piece.remove_prefix(run);
    if (piece.empty()) break;
    text += ' ';
    piece.remove_prefix(kSpace.size());
  }
  return text;
}

bool Begins(const Pieces& model, int32_t id) {
  if (!Text(model, id, /*first=*/true).empty()) return true;
  return !model.drops_every_leading_space && !Text(model, id, /*first=*/false).empty();
}

}  // namespace
}  // namespace ovq::model

extern "C" const ovq::model::PiecesApi* ovq_pieces_api() {
  static constexpr ovq::model::PiecesApi kApi = {.load = ovq::model::Load,
                                                 .free = ovq::model::Free,
                                                 .size = ovq::model::Size,
                                                 .encode = ovq::model::Encode,
                                                 .text = ovq::model::Text,
                                                 .begins = ovq::model::Begins};
  return &kApi;
}
