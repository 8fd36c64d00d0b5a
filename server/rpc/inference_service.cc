// ovq.v1.InferenceService.
#include <algorithm>
#include <limits>

#include "ovq/v1/inference.grpc.pb.h"
#include "server/engine/limits.h"
#include "server/engine/validate.h"
#include "server/rpc/chat_call.h"
#include "server/rpc/convert.h"
#include "server/rpc/grpc_unary.h"
#include "server/rpc/services.h"

namespace ovq {
namespace {

uint64_t SaturatingProduct(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<uint64_t>::max() : product;
}

// What depends on the memory that is asked about.
absl::Status FillMemory(const v1::GetModelInfoRequest& request, const Engine& engine,
                        v1::ModelInfo& info) {
  const EngineModel& model = engine.model();
  std::optional<int32_t> asked;
  if (request.has_max_centroids()) asked = static_cast<int32_t>(request.max_centroids());
  absl::Status status = CheckMemory(engine.config(), request.memory(), asked, "");
  if (!status.ok()) return status;
  const EngineMemory& memory = *model.FindMemory(request.memory());
  info.set_memory(memory.name);
  for (const std::string& type : memory.layer_types) info.add_layer_types(type);
  info.set_default_max_centroids(static_cast<uint32_t>(memory.default_slot_cap));
  info.set_max_centroids_limit(
      memory.default_slot_cap > 0 ? static_cast<uint32_t>(engine.options().max_slot_cap) : 0);
  const int32_t cap = asked.value_or(memory.default_slot_cap);
  info.set_state_bytes_cap(memory.layout->bytes_cap(cap));
  if (const std::optional<int64_t> exact = memory.exact_tokens(cap)) {
    info.set_exact_tokens(static_cast<uint64_t>(*exact));
  }
  const std::span<const uint64_t> asked_at(request.positions().data(),
                                           static_cast<size_t>(request.positions_size()));
  if (absl::Status status = CheckInfoPositions(asked_at); !status.ok()) return status;
  std::vector<uint64_t> positions(asked_at.begin(), asked_at.end());
  if (positions.empty()) positions = {1 << 10, 1 << 15, 1 << 20};
  for (uint64_t position : positions) {
    v1::StateSize& size = *info.add_state_sizes();
    size.set_position(position);
    size.set_state_bytes(memory.layout->bytes_at(static_cast<int64_t>(position), cap));
    size.set_full_kv_cache_bytes(SaturatingProduct(position, model.full_kv_bytes_per_token));
  }
  return absl::OkStatus();
}

void FillLimits(v1::RequestLimits& limits) {
  limits.set_max_completions(kMaxCompletions);
  limits.set_max_stop_strings(kMaxStopStrings);
  limits.set_max_stop_string_bytes(kMaxStopStringBytes);
  limits.set_max_stop_token_ids(kMaxStopTokenIds);
  limits.set_max_logit_bias(kMaxLogitBias);
  limits.set_max_top_logprobs(kMaxTopLogprobs);
  limits.set_max_page_size(kMaxPageSize);
  limits.set_max_messages(kMaxMessages);
  limits.set_max_role_bytes(kMaxRoleBytes);
  limits.set_max_tools_bytes(kMaxToolsBytes);
  limits.set_min_centroids(kMinSlotCap);
}

absl::StatusOr<v1::ModelInfo> HandleModelInfo(const UnaryInfo& call,
                                              const v1::GetModelInfoRequest& request) {
  const ServiceContext& services = call.services;
  const ModelDescription& description = services.description;
  const EngineModel& model = services.engine.model();
  const EngineOptions& options = services.engine.options();
  v1::ModelInfo info;
  info.set_name(description.name);
  info.set_fingerprint(description.fingerprint);
  info.set_vocab_size(static_cast<uint64_t>(model.vocab_size));
  info.set_hidden_size(static_cast<uint64_t>(description.hidden_size));
  info.set_parameters(static_cast<uint64_t>(description.parameters));
  info.set_has_tokenizer(model.tokenizer != nullptr && model.tokenizer->has_text());
  info.set_has_chat_template(model.chat_format != nullptr);
  if (model.tokenizer != nullptr) info.set_tokenizer(TokenizerName(model.tokenizer->kind()));
  if (description.bos_token_id.has_value()) {
    info.set_bos_token_id(static_cast<uint32_t>(*description.bos_token_id));
  }
  for (int32_t id : model.eos_token_ids) info.add_eos_token_ids(static_cast<uint32_t>(id));
  info.set_device(description.device);
  info.set_compute_dtype(description.compute_dtype);
  info.set_state_dtype(description.state_dtype);
  info.set_memory(description.memory);
  info.set_state_memory_bytes(options.state_memory_bytes);
  info.set_max_sessions(static_cast<uint64_t>(options.max_sessions));
  info.set_max_prompt_tokens(static_cast<uint64_t>(options.max_prompt_tokens));
  info.set_server_version(OVQ_VERSION);
  FillLimits(*info.mutable_limits());
  Fill(options.max_session_ttl, *info.mutable_limits()->mutable_max_ttl());
  for (const EngineMemory& memory : model.memories) info.add_memories(memory.name);
  if (absl::Status status = FillMemory(request, services.engine, info); !status.ok()) {
    return status;
  }
  return info;
}

void HandleScore(const UnaryInfo& info, const v1::ScoreRequest& message,
                 const UnaryDone<v1::ScoreResponse>& done) {
  Engine& engine = info.services.engine;
  absl::StatusOr<std::vector<int32_t>> tokens =
      PromptTokens(message.prompt(), "", PromptPlace(), engine);
  if (!tokens.ok()) return done(tokens.status());
  info.record.summary().work.prompt_tokens = static_cast<int64_t>(tokens->size());
  ScoreRequest request;
  request.prompt = *tokens;
  request.memory = message.memory();
  if (message.has_max_centroids()) request.slot_cap = static_cast<int32_t>(message.max_centroids());
  request.top_logprobs = static_cast<int>(message.top_logprobs());
  // The rows, the message that is made of them and its bytes; more is refused below.
  constexpr size_t kTopBytes = sizeof(TokenLogprob) + 2 * (sizeof(uint32_t) + sizeof(float)) + 1;
  const size_t per_token = 2 * sizeof(RowScore) + kTopBytes * message.top_logprobs();
  const size_t bytes = std::min(per_token * tokens->size(), 4 * kMaxAnswerBytes);
  if (absl::Status status = TakeBytes(info.memory, bytes); !status.ok()) return done(status);
  request.tenant = info.tenant;
  request.client = info.client;
  request.arrival = info.record.arrival();
  request.deadline = info.record.deadline();
  const absl::Status status = engine.SubmitScore(
      std::move(request), info.cancel,
      [&services = info.services, client = info.client, done,
       tokens = *std::move(tokens)](absl::StatusOr<ScoreResult> result) mutable {
        if (!result.ok()) return done(result.status());
        // The answer may be large: it is made, and the numbers it is made of go, on another thread.
        services.blocking.Run(client,
                              [done, tokens = std::move(tokens), rows = std::move(result->rows)] {
                                done(ToScoreResponse(tokens, rows));
                              });
      });
  if (!status.ok()) done(status);
}

absl::StatusOr<const Tokenizer*> TextTokenizer(const UnaryInfo& info, const char* field) {
  const Tokenizer* tokenizer = info.services.engine.model().tokenizer;
  if (tokenizer == nullptr || !tokenizer->has_text()) return NoTokenizer(field);
  return tokenizer;
}

absl::StatusOr<v1::ApplyTemplateResponse> HandleApplyTemplate(
    const UnaryInfo& info, const v1::ApplyTemplateRequest& message) {
  Engine& engine = info.services.engine;
  absl::StatusOr<std::string> text =
      NewText(message.conversation(), "conversation", PromptPlace(), engine);
  if (!text.ok()) return text.status();
  v1::ApplyTemplateResponse response;
  response.set_text(*std::move(text));
  return response;
}

absl::StatusOr<v1::TokenizeResponse> HandleTokenize(const UnaryInfo& info,
                                                    const v1::TokenizeRequest& message) {
  const absl::StatusOr<const Tokenizer*> tokenizer = TextTokenizer(info, "text");
  if (!tokenizer.ok()) return tokenizer.status();
  absl::StatusOr<std::vector<int32_t>> tokens =
      Encode(info.services.engine, message.text(), message.add_bos(), "text");
  if (!tokens.ok()) return tokens.status();
  v1::TokenizeResponse response;
  response.mutable_token_ids()->Add(tokens->begin(), tokens->end());
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> HandleDetokenize(const UnaryInfo& info,
                                                        const v1::DetokenizeRequest& message) {
  const absl::StatusOr<const Tokenizer*> tokenizer = TextTokenizer(info, "token_ids");
  if (!tokenizer.ok()) return tokenizer.status();
  const std::vector<int32_t> ids = TokenIds(message.token_ids());
  const int64_t vocab_size = info.services.engine.model().vocab_size;
  if (absl::Status status = CheckTokenIds(ids, vocab_size, "token_ids"); !status.ok()) {
    return status;
  }
  // Not Tokenizer::Decode: the bytes of a token need not be UTF-8, those of a message must.
  Detokenizer detokenizer(*tokenizer);
  v1::DetokenizeResponse response;
  for (int32_t id : ids) response.mutable_text()->append(detokenizer.Push(id));
  response.mutable_text()->append(detokenizer.Finish());
  return response;
}

}  // namespace

RpcService MakeInferenceService(ServiceContext& services) {
  using Service = RawService<v1::InferenceService>;
  using Context = Service::Context;
  using Bytes = Service::Bytes;
  auto service = std::make_unique<Service>(services, Access::kAny);
  service->Take("Generate", new grpc::internal::CallbackServerStreamingHandler<Bytes, Bytes>(
                                [&services](Context* context, const Bytes* request) {
                                  return StartGenerate(services, context, request);
                                }));
  service->Take("Chat",
                new grpc::internal::CallbackBidiHandler<Bytes, Bytes>(
                    [&services](Context* context) { return StartChat(services, context); }));
  service->Unary<v1::ScoreRequest, v1::ScoreResponse>("Score", &HandleScore);
  service->Unary("ApplyTemplate", &HandleApplyTemplate);
  service->Unary("Tokenize", &HandleTokenize);
  service->Unary("Detokenize", &HandleDetokenize);
  service->Unary("GetModelInfo", &HandleModelInfo, Lane::kQuick);
  return {v1::InferenceService::service_full_name(), std::move(service)};
}

std::vector<RpcService> ClientServices(ServiceContext& services) {
  std::vector<RpcService> made;
  made.push_back(MakeInferenceService(services));
  made.push_back(MakeSessionService(services));
  return made;
}

}  // namespace ovq
