// Every method of every service with any bytes for its message, through a whole server on a model
// that costs nothing: each call ends with a status that is documented, and leaves nothing behind.
#include <grpcpp/generic/generic_stub.h>

#include <algorithm>

#include "tests/fuzz/bytes.h"
#include "tests/fuzz/whole_server.h"

namespace ovq::fuzz {
namespace {

constexpr std::array kFuzzed = {
    "InferenceService/Generate",     "InferenceService/Chat",
    "InferenceService/Score",        "InferenceService/Tokenize",
    "InferenceService/Detokenize",   "InferenceService/ApplyTemplate",
    "InferenceService/GetModelInfo", "SessionService/CreateSession",
    "SessionService/GetSession",     "SessionService/ListSessions",
    "SessionService/DeleteSession",  "SessionService/ForkSession",
    "SessionService/RewindSession",  "SessionService/ExportSession",
    "SessionService/ImportSession",
};

// The statuses of docs/api.md, but for those that speak of the server: it is well, and alone.
bool IsDocumented(grpc::StatusCode code) {
  switch (code) {
    case grpc::OK:
    case grpc::CANCELLED:
    case grpc::INVALID_ARGUMENT:
    case grpc::DEADLINE_EXCEEDED:
    case grpc::NOT_FOUND:
    case grpc::RESOURCE_EXHAUSTED:
    case grpc::FAILED_PRECONDITION:
    case grpc::OUT_OF_RANGE:
    case grpc::DATA_LOSS:
      return true;
    default:
      return false;
  }
}

// Sends the messages, reads all answers.
grpc::Status Talk(test::TestServer& server, const std::string& method,
                  const std::vector<std::string>& messages) {
  grpc::GenericStub stub(server.channel());
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  const auto call = stub.PrepareCall(&context, method, &queue);
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    Check(queue.Next(&tag, &ok), "the queue lives");
    return ok;
  };
  call->StartCall(nullptr);
  bool goes = done();
  for (const std::string& message : messages) {
    if (!goes) break;
    const grpc::Slice slice(message);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    goes = done();
  }
  if (goes) {
    call->WritesDone(nullptr);
    done();
  }
  do {
    grpc::ByteBuffer answer;
    call->Read(&answer, nullptr);
    goes = done();
  } while (goes);
  grpc::Status status;
  call->Finish(&status, nullptr);
  done();
  return status;
}

}  // namespace
}  // namespace ovq::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ovq;
  using namespace ovq::fuzz;
  test::TestServer& server = WholeServer();
  Bytes bytes(data, size);
  const std::string method =
      std::string("/ovq.v1.") + kFuzzed[static_cast<size_t>(bytes.Upto(kFuzzed.size() - 1))];
  // Calls of one message get one; streams several, each behind its length.
  std::vector<std::string> messages;
  if (method.ends_with("/Chat") || method.ends_with("/ImportSession")) {
    while (!bytes.empty() && messages.size() < 8)
      messages.emplace_back(bytes.Take(static_cast<size_t>(bytes.Byte())));
  } else {
    messages.emplace_back(bytes.Rest());
  }
  const grpc::Status status = Talk(server, method, messages);
  if (!IsDocumented(status.error_code())) {
    std::fprintf(stderr, "%s: code %d: %s\n", method.c_str(), status.error_code(),
                 status.error_message().c_str());
    std::abort();
  }
  Check(status.ok() || !status.error_message().empty(), "an error says what is wrong");
  EndSessions(server);
  return 0;
}
