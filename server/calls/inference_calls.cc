// Handlers of the unary calls of ovq.v1.InferenceService.
#include <algorithm>
#include <limits>

#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "ovq/v1/inference.pb.h"
#include "server/calls/convert.h"
#include "server/calls/generation.h"
#include "server/calls/handlers.h"
#include "server/engine/common/limits.h"
#include "server/engine/common/validate.h"

namespace ovq::server {
namespace {

uint64_t SaturatingProduct(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<uint64_t>::max() : product;
}

// Fills the fields that depend on the model variant of the request.
absl::Status FillVariant(const v1::GetModelInfoRequest& request, const engine::Engine& engine,
                         v1::ModelInfo& info) {
  const engine::EngineModel& model = engine.model();
  std::optional<int32_t> asked;
  if (request.has_max_centroids()) asked = static_cast<int32_t>(request.max_centroids());
  RETURN_IF_ERROR(engine::CheckVariant(engine.config(), request.memory(), asked, ""));
  const engine::ModelVariant& variant = *model.FindVariant(request.memory());
  info.set_memory(variant.name);
  for (const std::string& type : variant.layer_types) info.add_layer_types(type);
  info.set_default_max_centroids(variant.default_slot_cap);
  info.set_max_centroids_limit(
      variant.default_slot_cap > 0 ? static_cast<uint32_t>(engine.options().max_slot_cap) : 0);
  const int32_t cap = asked.value_or(variant.default_slot_cap);
  info.set_state_bytes_cap(variant.layout->bytes_cap(cap));
  if (const std::optional<int64_t> exact = variant.exact_tokens(cap)) {
    info.set_exact_tokens(*exact);
  }
  const std::span<const uint64_t> asked_at(request.positions().data(),
                                           static_cast<size_t>(request.positions_size()));
  RETURN_IF_ERROR(engine::CheckInfoPositions(asked_at));
  std::vector<uint64_t> positions(asked_at.begin(), asked_at.end());
  if (positions.empty()) positions = {1 << 10, 1 << 15, 1 << 20};
  for (uint64_t position : positions) {
    v1::StateSize& size = *info.add_state_sizes();
    size.set_position(position);
    size.set_state_bytes(variant.layout->bytes_at(static_cast<int64_t>(position), cap));
    size.set_full_kv_cache_bytes(SaturatingProduct(position, model.full_kv_bytes_per_token));
  }
  return absl::OkStatus();
}

void FillLimits(v1::RequestLimits& limits) {
  limits.set_max_completions(engine::kMaxCompletions);
  limits.set_max_stop_strings(engine::kMaxStopStrings);
  limits.set_max_stop_string_bytes(engine::kMaxStopStringBytes);
  limits.set_max_stop_token_ids(engine::kMaxStopTokenIds);
  limits.set_max_logit_bias(engine::kMaxLogitBias);
  limits.set_max_top_logprobs(engine::kMaxTopLogprobs);
  limits.set_max_page_size(engine::kMaxPageSize);
  limits.set_max_messages(engine::kMaxMessages);
  limits.set_max_role_bytes(engine::kMaxRoleBytes);
  limits.set_max_tools_bytes(engine::kMaxToolsBytes);
  limits.set_min_centroids(kernels::kMinSlotCap);
  limits.set_max_constraint_bytes(engine::kMaxConstraintBytes);
  limits.set_max_choices(engine::kMaxChoices);
}

absl::StatusOr<const model::Tokenizer*> TextTokenizer(CallRecord& call, const char* field) {
  const model::Tokenizer* tokenizer = call.services().engine.model().tokenizer;
  if (tokenizer == nullptr || !tokenizer->has_text()) return engine::ModelLacks(field, "tokenizer");
  return tokenizer;
}

}  // namespace

absl::StatusOr<v1::ModelInfo> GetModelInfo(CallRecord& call,
                                           const v1::GetModelInfoRequest& request) {
  const ServiceContext& services = call.services();
  const ModelDescription& description = services.description;
  const engine::EngineModel& model = services.engine.model();
  const engine::EngineOptions& options = services.engine.options();
  v1::ModelInfo info;
  info.set_name(description.names.front());
  info.set_fingerprint(description.fingerprint);
  info.set_vocab_size(model.vocab_size);
  info.set_hidden_size(description.hidden_size);
  info.set_parameters(description.parameters);
  info.set_has_tokenizer(model.tokenizer != nullptr && model.tokenizer->has_text());
  info.set_has_chat_template(model.chat_format != nullptr);
  info.set_has_constraints(model.vocabulary != nullptr);
  if (model.tokenizer != nullptr) info.set_tokenizer(model::TokenizerName(model.tokenizer->kind()));
  if (description.bos_token_id.has_value()) {
    info.set_bos_token_id(*description.bos_token_id);
  }
  for (int32_t id : model.eos_token_ids) info.add_eos_token_ids(id);
  info.set_device(description.device);
  info.set_compute_dtype(description.compute_dtype);
  info.set_weights(description.weights);
  info.set_state_dtype(description.state_dtype);
  info.set_memory(description.cache_policies);
  info.set_state_memory_bytes(options.state_memory_bytes);
  info.set_max_sessions(options.max_sessions);
  info.set_max_prompt_tokens(options.max_prompt_tokens);
  info.set_server_version(OVQ_VERSION);
  FillLimits(*info.mutable_limits());
  Fill(options.max_session_ttl, *info.mutable_limits()->mutable_max_ttl());
  for (const engine::ModelVariant& variant : model.variants) info.add_memories(variant.name);
  RETURN_IF_ERROR(FillVariant(request, services.engine, info));
  return info;
}

void Score(CallRecord& call, const v1::ScoreRequest& message,
           const UnaryDone<v1::ScoreResponse>& done) {
  engine::Engine& engine = call.services().engine;
  absl::StatusOr<PromptIds> prompt = PromptTokens(message.prompt(), "", PromptPlace(), engine);
  if (!prompt.ok()) return done(prompt.status());
  const std::vector<int32_t>& tokens = prompt->ids;
  call.summary().work.prompt_tokens = std::ssize(tokens);
  const absl::Status status =
      SubmitScore(message, tokens, call,
                  [done, tokens](const absl::StatusOr<std::vector<model::TokenScore>>& rows) {
                    rows.ok() ? done(ToScoreResponse(tokens, *rows)) : done(rows.status());
                  });
  if (!status.ok()) done(status);
}

absl::StatusOr<v1::ApplyTemplateResponse> ApplyTemplate(CallRecord& call,
                                                        const v1::ApplyTemplateRequest& message) {
  engine::Engine& engine = call.services().engine;
  ASSIGN_OR_RETURN(PromptText prompt,
                   NewText(message.conversation(), "conversation", PromptPlace(), engine));
  v1::ApplyTemplateResponse response;
  response.set_text(std::move(prompt.text));
  return response;
}

absl::StatusOr<v1::TokenizeResponse> Tokenize(CallRecord& call,
                                              const v1::TokenizeRequest& message) {
  RETURN_IF_ERROR(TextTokenizer(call, "text").status());
  ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                   Encode(call.services().engine, message.text(), message.add_bos(), "text"));
  v1::TokenizeResponse response;
  response.mutable_token_ids()->Add(tokens.begin(), tokens.end());
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> Detokenize(CallRecord& call,
                                                  const v1::DetokenizeRequest& message) {
  ASSIGN_OR_RETURN(const model::Tokenizer* tokenizer, TextTokenizer(call, "token_ids"));
  const std::vector<int32_t> ids = TokenIds(message.token_ids());
  const int64_t vocab_size = call.services().engine.model().vocab_size;
  RETURN_IF_ERROR(engine::CheckTokenIds(ids, vocab_size, "token_ids"));
  // Not Tokenizer::Decode: the text of a message must be UTF-8, the bytes of one token need not.
  model::Detokenizer detokenizer(tokenizer);
  v1::DetokenizeResponse response;
  for (int32_t id : ids) response.mutable_text()->append(detokenizer.Push(id));
  response.mutable_text()->append(detokenizer.Finish());
  return response;
}

v1::ServerStatus GetServerStatus(const ServiceContext& services) {
  v1::ServerStatus status;
  status.set_version(OVQ_VERSION);
  status.set_model(services.description.names.front());
  status.set_draining(services.draining());
  const absl::Time started = services.started;
  status.mutable_started()->set_seconds(absl::ToUnixSeconds(started));
  status.mutable_uptime()->set_seconds(absl::ToInt64Seconds(absl::Now() - started));
  const engine::EngineStats stats = services.engine.Stats();
  status.set_requests_running(stats.requests_running);
  status.set_requests_waiting(stats.requests_waiting);
  status.set_waiting_prompt_tokens(stats.waiting_prompt_tokens);
  status.set_sessions_active(stats.sessions_active);
  status.set_sessions_idle(stats.sessions_idle);
  status.set_max_sessions(services.engine.options().max_sessions);
  status.set_state_bytes_committed(stats.state_bytes_committed);
  status.set_state_bytes_reserved(stats.state_bytes_reserved);
  status.set_state_bytes_budget(stats.state_bytes_budget);
  const Metrics::Tokens tokens = services.metrics.BatchTokens();
  status.set_prompt_tokens(tokens.prompt);
  status.set_generated_tokens(tokens.generated);
  return status;
}

}  // namespace ovq::server
