#include "server/rpc/inference_service.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "server/rpc/convert.h"
#include "server/rpc/grpc_unary.h"
#include "server/rpc/inference_service_chat.h"
#include "server/rpc/inference_service_generate.h"

namespace ovq {
namespace {

constexpr int kMaxInfoPositions = 1000;

uint64_t SaturatingProduct(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<uint64_t>::max() : product;
}

absl::Status FillStateSizes(const v1::GetModelInfoRequest& request, const Engine& engine,
                            v1::ModelInfo& info) {
  const RequestLimits limits = RequestLimits::Of(engine);
  const EngineModel& model = engine.model();
  int32_t cap = model.default_slot_cap;
  if (request.has_max_centroids()) {
    absl::StatusOr<int32_t> asked = ToSlotCap(request.max_centroids(), "", limits);
    if (!asked.ok()) return asked.status();
    cap = *asked;
  }
  info.set_state_bytes_cap(model.layout->bytes_cap(cap));
  google::protobuf::RepeatedField<uint64_t> positions = request.positions();
  if (positions.size() > kMaxInfoPositions) {
    return absl::InvalidArgumentError(absl::StrCat("positions: expected at most ",
                                                   kMaxInfoPositions, ", got ", positions.size()));
  }
  if (positions.empty()) {
    for (uint64_t position : {uint64_t{1} << 10, uint64_t{1} << 15, uint64_t{1} << 20}) {
      positions.Add(position);
    }
  }
  for (int i = 0; i < positions.size(); ++i) {
    constexpr uint64_t kMost = uint64_t{1} << 48;  // far beyond any conversation, safe to compute
    if (positions[i] > kMost) {
      return absl::InvalidArgumentError(
          absl::StrCat("positions[", i, "]: expected at most ", kMost, ", got ", positions[i]));
    }
    v1::StateSize& size = *info.add_state_sizes();
    size.set_position(positions[i]);
    size.set_state_bytes(model.layout->bytes_at(static_cast<int64_t>(positions[i]), cap));
    size.set_full_kv_cache_bytes(SaturatingProduct(positions[i], model.full_kv_bytes_per_token));
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::ModelInfo> MakeModelInfo(const v1::GetModelInfoRequest& request,
                                            const ServiceContext& services) {
  const ModelDescription& description = services.description;
  const EngineModel& model = services.engine.model();
  const EngineOptions& options = services.engine.options();
  v1::ModelInfo info;
  info.set_name(description.name);
  info.set_fingerprint(description.fingerprint);
  info.set_vocab_size(static_cast<uint64_t>(model.vocab_size));
  info.set_hidden_size(static_cast<uint64_t>(description.hidden_size));
  for (const std::string& type : description.layer_types) info.add_layer_types(type);
  info.set_parameters(static_cast<uint64_t>(description.parameters));
  info.set_default_max_centroids(static_cast<uint32_t>(model.default_slot_cap));
  info.set_max_centroids_limit(
      model.default_slot_cap > 0 ? static_cast<uint32_t>(options.max_slot_cap) : 0);
  info.set_has_tokenizer(services.tokenizer() != nullptr && services.tokenizer()->has_text());
  if (description.bos_token_id.has_value()) {
    info.set_bos_token_id(static_cast<uint32_t>(*description.bos_token_id));
  }
  for (int32_t id : model.eos_token_ids) info.add_eos_token_ids(static_cast<uint32_t>(id));
  info.set_device(description.device);
  info.set_compute_dtype(description.compute_dtype);
  info.set_state_dtype(description.state_dtype);
  info.set_state_memory_bytes(options.state_memory_bytes);
  info.set_max_sessions(static_cast<uint64_t>(options.max_sessions));
  info.set_max_prompt_tokens(static_cast<uint64_t>(options.max_prompt_tokens));
  info.set_server_version(OVQ_VERSION);
  if (absl::Status status = FillStateSizes(request, services.engine, info); !status.ok()) {
    return status;
  }
  return info;
}

void HandleScore(ServiceContext& services, const UnaryInfo& info, const v1::ScoreRequest& message,
                 UnaryDone<v1::ScoreResponse> done) {
  absl::StatusOr<ScoreRequest> request =
      ToScoreRequest(message, RequestLimits::Of(services.engine));
  if (!request.ok()) return done(request.status());
  info.summary->work.prompt_tokens = static_cast<int64_t>(request->tokens.size());
  request->tenant = info.tenant;
  request->arrival = info.arrival;
  request->deadline = info.deadline;
  std::vector<int32_t> tokens = request->tokens;
  const absl::Status status = services.engine.SubmitScore(
      *std::move(request), [cancelled = info.cancelled] { return cancelled->load(); },
      [done, tokens = std::move(tokens)](absl::StatusOr<ScoreResult> result) {
        if (!result.ok()) return done(result.status());
        done(ToScoreResponse(tokens, *result));
      });
  if (!status.ok()) done(status);
}

void HandleTokenize(ServiceContext& services, const UnaryInfo& info,
                    const v1::TokenizeRequest& message, UnaryDone<v1::TokenizeResponse> done) {
  if (absl::Status status = services.engine.ChargeRequest(info.tenant); !status.ok()) {
    return done(status);
  }
  const RequestLimits limits = RequestLimits::Of(services.engine);
  if (!limits.has_text()) {
    return done(absl::FailedPreconditionError("text: this model has no tokenizer"));
  }
  absl::StatusOr<std::vector<int32_t>> tokens =
      limits.tokenizer->Encode(message.text(), message.add_bos());
  if (!tokens.ok()) return done(tokens.status());
  v1::TokenizeResponse response;
  response.mutable_token_ids()->Add(tokens->begin(), tokens->end());
  done(std::move(response));
}

void HandleDetokenize(ServiceContext& services, const UnaryInfo& info,
                      const v1::DetokenizeRequest& message,
                      UnaryDone<v1::DetokenizeResponse> done) {
  if (absl::Status status = services.engine.ChargeRequest(info.tenant); !status.ok()) {
    return done(status);
  }
  const RequestLimits limits = RequestLimits::Of(services.engine);
  if (!limits.has_text()) {
    return done(absl::FailedPreconditionError("token_ids: this model has no tokenizer"));
  }
  absl::StatusOr<std::vector<int32_t>> ids =
      ToTokenIds(message.token_ids(), "token_ids", limits.vocab_size);
  if (!ids.ok()) return done(ids.status());
  // Not Tokenizer::Decode: the bytes of a token need not be UTF-8, those of a message must.
  Detokenizer detokenizer(limits.tokenizer);
  v1::DetokenizeResponse response;
  for (int32_t id : *ids) response.mutable_text()->append(detokenizer.Push(id));
  response.mutable_text()->append(detokenizer.Finish());
  done(std::move(response));
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  return StartGenerate(services_, context, request);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* InferenceService::Chat(
    grpc::CallbackServerContext* context) {
  return StartChat(services_, context);
}

grpc::ServerUnaryReactor* InferenceService::Score(grpc::CallbackServerContext* context,
                                                  const grpc::ByteBuffer* request,
                                                  grpc::ByteBuffer* response) {
  return new UnaryCall<v1::ScoreRequest, v1::ScoreResponse>(
      services_, Method::kScore, context, request, response,
      [this](const UnaryInfo& info, const v1::ScoreRequest& message, auto done) {
        HandleScore(services_, info, message, std::move(done));
      });
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request,
                                                     grpc::ByteBuffer* response) {
  return new UnaryCall<v1::TokenizeRequest, v1::TokenizeResponse>(
      services_, Method::kTokenize, context, request, response,
      [this](const UnaryInfo& info, const v1::TokenizeRequest& message, auto done) {
        HandleTokenize(services_, info, message, std::move(done));
      });
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return new UnaryCall<v1::DetokenizeRequest, v1::DetokenizeResponse>(
      services_, Method::kDetokenize, context, request, response,
      [this](const UnaryInfo& info, const v1::DetokenizeRequest& message, auto done) {
        HandleDetokenize(services_, info, message, std::move(done));
      });
}

grpc::ServerUnaryReactor* InferenceService::GetModelInfo(grpc::CallbackServerContext* context,
                                                         const grpc::ByteBuffer* request,
                                                         grpc::ByteBuffer* response) {
  return new UnaryCall<v1::GetModelInfoRequest, v1::ModelInfo>(
      services_, Method::kGetModelInfo, context, request, response,
      [this](const UnaryInfo&, const v1::GetModelInfoRequest& message, auto done) {
        done(MakeModelInfo(message, services_));
      });
}

}  // namespace ovq
