#include "tests/model/sentencepiece_util.h"

#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "base/check.h"

namespace ovq::model::test {

void TrainPieces(const std::string& corpus, const std::string& prefix, int n_pieces) {
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--input=" + corpus + " --model_prefix=" + prefix +
      " --vocab_size=" + std::to_string(n_pieces) +
      " --model_type=bpe --byte_fallback=true --minloglevel=2 --num_threads=1");
  Check(status.ok(), status.ToString().c_str());
}

std::string ReferenceDecode(const std::string& model, const std::vector<int32_t>& ids) {
  sentencepiece::SentencePieceProcessor processor;
  Check(processor.Load(model).ok(), "a model that was just trained");
  return processor.DecodeIds(std::vector<int>(ids.begin(), ids.end()));
}

}  // namespace ovq::model::test
