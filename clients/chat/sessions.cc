#include "clients/chat/sessions.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "clients/chat/terminal.h"
#include "ovq/v1/inference.grpc.pb.h"

namespace ovq::clients {
namespace {

using Stub = v1::SessionService::Stub;

// State of one SessionService call; `id` is the session's, or "".
struct SessionCall {
  SessionCall(const Connection& connection, const std::string& id)
      : stub(v1::SessionService::NewStub(connection.channel)) {
    connection.Authorize(context, SessionKeyFromId(id));
  }

  const std::unique_ptr<Stub> stub;
  grpc::ClientContext context;
};

// Opens a file; returns null after printing the error.
std::FILE* OpenFile(const std::string& path, const char* mode) {
  std::FILE* file = std::fopen(path.c_str(), mode);
  if (file == nullptr) Complain(absl::StrCat(path, ": ", std::strerror(errno)));
  return file;
}

// Calls a method for a session; prints the error if the call fails.
template <class Request, class Response>
bool CallFor(const Connection& connection, const std::string& id,
             grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
             Response& response, Request request = {}) {
  SessionCall call(connection, id);
  request.set_session_id(id);
  const grpc::Status status = (call.stub.get()->*method)(&call.context, request, &response);
  if (!status.ok()) Complain(connection, status, call.context);
  return status.ok();
}

void Tell(const std::string& line) { std::fputs(absl::StrCat(line, "\n").c_str(), stderr); }

}  // namespace

void ShowSession(const Connection& connection, const std::string& id) {
  v1::Session session;
  if (!CallFor(connection, id, &Stub::GetSession, session)) return;
  Tell(absl::StrCat("[session ", id, " | position ", session.position(), " | prompt ",
                    session.prompt_tokens_total(), " tokens | generated ",
                    session.generated_tokens_total(), " tokens | state ",
                    HumanBytes(session.state_bytes()), " of at most ",
                    HumanBytes(session.state_bytes_cap()), " | centroids ",
                    session.live_centroids(), " of at most ", session.max_centroids(), "]"));
}

void ForkSession(const Connection& connection, const std::string& id) {
  v1::ForkSessionResponse forked;
  if (!CallFor(connection, id, &Stub::ForkSession, forked)) return;
  for (const v1::Session& session : forked.sessions()) {
    Tell(absl::StrCat("session ", session.session_id()));
  }
}

bool RewindSession(const Connection& connection, const std::string& id, uint64_t position) {
  v1::RewindSessionRequest request;
  request.set_position(position);
  v1::RewindSessionResponse rewound;
  if (!CallFor(connection, id, &Stub::RewindSession, rewound, request)) return false;
  Tell(absl::StrCat("[back at position ", position, "]"));
  return true;
}

void SaveSession(const Connection& connection, const std::string& id, const std::string& path) {
  std::FILE* file = OpenFile(path, "wbx");
  if (file == nullptr) return;
  SessionCall call(connection, id);
  v1::ExportSessionRequest request;
  request.set_session_id(id);
  const auto reader = call.stub->ExportSession(&call.context, request);
  v1::SessionBytes part;
  size_t bytes = 0;
  bool written = true;
  while (written && reader->Read(&part)) {
    written = std::fwrite(part.data().data(), 1, part.data().size(), file) == part.data().size();
    bytes += part.data().size();
  }
  written = std::fclose(file) == 0 && written;
  if (!written) call.context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (written && status.ok()) {
    Tell(absl::StrCat("[", bytes, " bytes in ", path, "]"));
    return;
  }
  std::remove(path.c_str());
  if (written) {
    Complain(connection, status, call.context);
  } else {
    Complain(absl::StrCat(path, ": cannot be written"));
  }
}

void LoadSession(const Connection& connection, const std::string& path) {
  constexpr size_t kPartBytes = size_t{1} << 20;
  std::FILE* file = OpenFile(path, "rb");
  if (file == nullptr) return;
  SessionCall call(connection, "");
  v1::Session session;
  const auto writer = call.stub->ImportSession(&call.context, &session);
  std::string buffer(kPartBytes, 0);
  v1::SessionBytes part;
  while (const size_t n = std::fread(buffer.data(), 1, buffer.size(), file)) {
    part.set_data(buffer.data(), n);
    if (!writer->Write(part)) break;
  }
  std::fclose(file);
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) {
    Complain(connection, status, call.context);
    return;
  }
  Tell(absl::StrCat("session ", session.session_id()));
}

}  // namespace ovq::clients
