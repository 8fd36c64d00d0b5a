// ovq.v1.InferenceService on gRPC's callback API. Requests come as bytes: see grpc_codec.h.
#pragma once

#include <grpcpp/grpcpp.h>

#include "ovq/v1/inference.grpc.pb.h"
#include "server/rpc/grpc_context.h"

namespace ovq {

// The generated service with every method taking bytes.
using RawInferenceService = v1::InferenceService::WithRawCallbackMethod_Generate<
    v1::InferenceService::WithRawCallbackMethod_Chat<
        v1::InferenceService::WithRawCallbackMethod_Score<
            v1::InferenceService::WithRawCallbackMethod_Tokenize<
                v1::InferenceService::WithRawCallbackMethod_Detokenize<
                    v1::InferenceService::WithRawCallbackMethod_GetModelInfo<
                        v1::InferenceService::Service>>>>>>;

class InferenceService final : public RawInferenceService {
 public:
  explicit InferenceService(ServiceContext& services) : services_(services) {}

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Generate(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Chat(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* Score(grpc::CallbackServerContext* context,
                                  const grpc::ByteBuffer* request,
                                  grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModelInfo(grpc::CallbackServerContext* context,
                                         const grpc::ByteBuffer* request,
                                         grpc::ByteBuffer* response) override;

 private:
  ServiceContext& services_;
};

}  // namespace ovq
