#include "model/piece_model.h"

#include <sentencepiece_processor.h>

namespace ovq {
namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // "▁"

bool StartsWithSpace(std::string_view piece) { return piece.substr(0, kSpace.size()) == kSpace; }

}  // namespace

PieceModel::PieceModel() : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {}
PieceModel::~PieceModel() = default;

std::unique_ptr<PieceModel> PieceModel::Load(const std::string& path, std::string* error) {
  std::unique_ptr<PieceModel> model(new PieceModel);
  const sentencepiece::SentencePieceProcessor& processor = *model->processor_;
  const auto status = model->processor_->Load(path);
  if (!status.ok()) {
    *error = status.ToString();
    return nullptr;
  }
  // What Decode does with leading spaces follows from the model's normalizer, which the library
  // does not show; so it is asked.
  const int space = processor.PieceToId(kSpace);
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    if (processor.IsControl(id) || !StartsWithSpace(processor.IdToPiece(id))) continue;
    const std::string text = processor.DecodeIds({id});
    model->drops_first_space_ = text.empty() || text.front() != ' ';
    break;
  }
  model->drops_every_leading_space_ = model->drops_first_space_ && !processor.IsUnknown(space) &&
                                      processor.DecodeIds({space, space}).empty();
  return model;
}

int32_t PieceModel::size() const { return processor_->GetPieceSize(); }

bool PieceModel::Encode(std::string_view text, std::vector<int32_t>* ids,
                        std::string* error) const {
  std::vector<int> pieces;
  const auto status = processor_->Encode(text, &pieces);
  if (!status.ok()) {
    *error = status.ToString();
    return false;
  }
  ids->insert(ids->end(), pieces.begin(), pieces.end());
  return true;
}

std::string PieceModel::Text(int32_t id, bool first) const {
  if (id < 0 || id >= size() || processor_->IsControl(id)) return "";
  if (processor_->IsUnknown(id)) return processor_->DecodeIds({id});
  std::string_view piece = processor_->IdToPiece(id);
  if (processor_->IsByte(id)) {  // "<0xE2>"
    return std::string(1,
                       static_cast<char>(std::stoi(std::string(piece.substr(3, 2)), nullptr, 16)));
  }
  if (first && drops_first_space_ && StartsWithSpace(piece)) piece.remove_prefix(kSpace.size());
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

bool PieceModel::Begins(int32_t id) const {
  if (!Text(id, /*first=*/true).empty()) return true;
  return !drops_every_leading_space_ && !Text(id, /*first=*/false).empty();
}

}  // namespace ovq
