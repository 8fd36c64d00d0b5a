// A LanguageModel as an engine serves it, without text.
#pragma once

#include <optional>

#include "model/language_model.h"
#include "server/engine/common/engine_config.h"

namespace ovq::engine::test {

// The model outlives the engine.
inline EngineModel Served(const model::LanguageModel& model) {
  EngineModel served;
  served.vocab_size = model.config().vocab_size;
  served.full_kv_bytes_per_token = model.full_kv_bytes_per_token();
  served.variants.push_back(
      {.name = "model",
       .fingerprint = model.fingerprint(),
       .layer_types = model.config().layer_types(),
       .default_slot_cap = static_cast<int32_t>(model.layout().default_slot_cap()),
       .layout = &model.layout(),
       .exact_tokens = [](int64_t) { return std::nullopt; },
       .forward =
           [&model](const model::Batch& batch, kernels::DeviceContext& context,
                    kernels::ScratchScope& scope) { return model.Forward(batch, context, scope); },
       .undo_extents =
           [&model](const kernels::TokenRange& tokens) { return model.UndoExtents(tokens); },
       .can_undo_suffix =
           [&model](const kernels::TokenRange& tokens) { return model.CanUndoSuffix(tokens); }});
  return served;
}

}  // namespace ovq::engine::test
