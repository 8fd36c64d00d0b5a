// ExportSession and ImportSession: stream a session file in parts.
#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ovq/v1/inference.pb.h"
#include "server/calls/convert.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/session_image.h"
#include "server/engine/common/validate.h"
#include "server/rpc/stream_call.h"

namespace ovq::server {
namespace {

constexpr size_t kPartBytes = size_t{1} << 20;

// The bytes of a file of a state and tokens, about.
size_t FileBytes(size_t state_bytes, int64_t tokens) {
  return state_bytes + static_cast<size_t>(tokens) * sizeof(int32_t);
}

// The share of one call in a TransferBudget: of an import while its bytes arrive, of an export
// until its client has read it. A call releases it before its client has the status, which may make
// the next call at once. Shares the budget: a call may live a little longer than its service, since
// a worker thread drops the last reference to it.
class TransferReservation {
 public:
  explicit TransferReservation(std::shared_ptr<TransferBudget> budget)
      : budget_(std::move(budget)) {}
  ~TransferReservation() { Release(); }
  TransferReservation(const TransferReservation&) = delete;
  TransferReservation& operator=(const TransferReservation&) = delete;

  // A refused call holds nothing, and is counted.
  absl::Status Reserve(size_t bytes, const engine::EngineConfig& config) {
    size_t held = budget_->held;
    while (bytes <= budget_->most - held) {
      if (!budget_->held.compare_exchange_weak(held, held + bytes)) continue;
      bytes_ += bytes;
      return absl::OkStatus();
    }
    config.events.rejected(engine::RejectReason::kStateMemory);
    const size_t free = budget_->most - held;
    return engine::WithFacts(
        absl::ResourceExhaustedError(absl::StrCat(budget_->what, ": ", bytes, " bytes needed, ",
                                                  free, " of ", budget_->most, " bytes free")),
        {.reason = engine::RejectReason::kStateMemory, .bytes_needed = bytes, .bytes_free = free});
  }
  void Release() { budget_->held -= std::exchange(bytes_, 0); }

 private:
  const std::shared_ptr<TransferBudget> budget_;
  size_t bytes_ = 0;
};

class ExportCall final : public StreamCall<WriteReactor, v1::SessionBytes> {
 public:
  ExportCall(std::shared_ptr<TransferBudget> budget, ServiceContext& services, const char* label,
             grpc::CallbackServerContext* context)
      : StreamCall(services, label, context), reservation_(std::move(budget)) {}

  void Start(const grpc::ByteBuffer* request) {
    KeepUntilDone();
    if (absl::Status status = call_.HoldMessage(*request); !status.ok()) return EndCall(status);
    if (absl::Status status = Admit(); !status.ok()) return EndCall(status);
    BeginOnBlockingThread(request->Length(), [this, request](absl::Status status) {
      if (status.ok()) status = Read(*request);
      if (!status.ok()) return End(status);
      OnStrand([this] { Pump(); });
    });
  }

 private:
  void End(const absl::Status& status) {
    file_ = {};
    reservation_.Release();
    EndCall(status);
  }

  absl::Status Read(const grpc::ByteBuffer& bytes) {
    v1::ExportSessionRequest message;
    RETURN_IF_ERROR(ParseMessage(bytes, message, record_.memory()));
    RETURN_IF_ERROR(engine::CheckSessionId(message.session_id(), ""));
    record_.summary().SetSession(message.session_id());
    std::optional<engine::SessionBase> since;
    if (message.has_since()) {
      const std::string& digest = message.since().digest();
      const uint64_t length = message.since().length();
      RETURN_IF_ERROR(engine::CheckSessionBase(length, digest.size(), "since."));
      since = {static_cast<int64_t>(length), digest};
    }
    RETURN_IF_ERROR(Reserve(message.session_id(), /*whole=*/!since));
    ASSIGN_OR_RETURN(
        engine::SessionImage image,
        services_.engine.sessions().Export(message.session_id(), record_.caller().tenant, since));
    image.made_by = absl::StrCat("ovq-server ", OVQ_VERSION);
    if (image.tokens) base_ = engine::MakeSessionBase(*image.tokens);
    file_ = since ? engine::EncodeDelta(image, *since)
                  : engine::EncodeSession(std::move(image),
                                          services_.engine.config().options.fleet_keys.get());
    return absl::OkStatus();
  }

  absl::Status Reserve(const std::string& id, bool whole) {
    ASSIGN_OR_RETURN(const engine::SessionInfo info,
                     services_.engine.sessions().Get(id, record_.caller().tenant));
    const size_t state = info.hibernated ? info.state_bytes_cap : info.state_bytes;
    const size_t bytes = FileBytes(whole ? state : 0, info.position);
    // The only export may be of a session that fills the state memory.
    const engine::EngineConfig& config = services_.engine.config();
    return reservation_.Reserve(std::min(bytes, config.options.state_memory_bytes), config);
  }

  bool Advance() override {
    const std::string_view part = file_.Part(sent_, kPartBytes);
    if (client_gone_) {
      End(absl::CancelledError("cancelled by the client"));
    } else if (part.empty()) {
      End(absl::OkStatus());
    } else {
      v1::SessionBytes& message = out_.emplace_back();
      message.set_data(part.data(), part.size());
      if (sent_ == 0 && base_) {
        message.mutable_base()->set_length(base_->length);
        message.mutable_base()->set_digest(base_->digest);
      }
      sent_ += part.size();
    }
    return true;
  }

  TransferReservation reservation_;
  engine::EncodedSession file_;
  std::optional<engine::SessionBase> base_;  // of the exported file; none without tokens
  size_t sent_ = 0;
};

class ImportCall final : public grpc::ServerReadReactor<grpc::ByteBuffer>,
                         public std::enable_shared_from_this<ImportCall> {
 public:
  ImportCall(std::shared_ptr<TransferBudget> budget, ServiceContext& services, const char* label,
             grpc::CallbackServerContext* context, grpc::ByteBuffer* response)
      : services_(services),
        call_(services, label, context),
        response_(response),
        reservation_(std::move(budget)),
        reader_(
            std::in_place, [this](const engine::SessionImage& head) { return CheckHead(head); },
            /*digest=*/true, services.engine.config().options.fleet_keys.get()) {}

  void Start() {
    self_ = shared_from_this();
    absl::Status status = call_.record().Admit();
    // The engine refuses a session whose file is not all there when a drain begins. So the call
    // does not wait for its next part, which may never come.
    services_.OnDrain(this, [this] {
      services_.blocking.Run(call_.record().client(),
                             [self = shared_from_this()] { self->EndIfReading(); });
    });
    if (status.ok()) status = services_.AdmitWork();
    if (!status.ok()) return End(status);
    Work([this] {
      call_.record().SetCaller(options_);
      options_.cancel = call_.record().cancel();
      if (absl::Status status = ParseSessionKey(call_, options_); !status.ok()) return End(status);
      Read();
    });
  }

  void OnReadDone(bool ok) override {
    if (!StopReading()) return part_.Clear();  // a drain has ended the call
    // While it waits to be parsed.
    const absl::Status held = ReserveBytes(call_.record().memory(), ok ? part_.Length() : 0);
    if (!held.ok()) return End(held);
    Work([this, ok] { ok ? Add() : Import(); });
  }
  void OnCancel() override { call_.record().cancel()->Cancel(); }
  void OnDone() override {
    services_.OnDrain(this, nullptr);
    self_.reset();
  }

 private:
  template <class Function>
  void Work(Function work) {
    // A part is copied more than parsed, so that none is large.
    call_.record().Begin(
        services_.blocking, /*message_bytes=*/0,
        [self = shared_from_this(), work = std::move(work)](const absl::Status& status) {
          status.ok() ? work() : self->End(status);
        });
  }
  void End(const absl::Status& status) {
    part_.Clear();
    Free();
    Finish(call_.End(status));
  }
  void Free() {
    reader_.reset();
    reservation_.Release();
  }
  void Read() {
    {
      // With the lock, so that a drain ends the call behind the start of its read, never before it:
      // gRPC may have freed the call by then.
      const std::lock_guard lock(mutex_);
      reading_ = true;
      StartRead(&part_);
    }
    // A drain that has begun meanwhile may have found the call at work.
    if (services_.draining()) EndIfReading();
  }
  bool StopReading() {
    const std::lock_guard lock(mutex_);
    return std::exchange(reading_, false);
  }
  // The read goes on until OnReadDone, and may still write the part.
  void EndIfReading() {
    if (!StopReading()) return;
    Free();
    Finish(call_.End(services_.CheckServing()));
  }

  absl::Status CheckHead(const engine::SessionImage& head) {
    RETURN_IF_ERROR(services_.engine.sessions().CheckImport(head));
    return reservation_.Reserve(FileBytes(head.state_bytes, head.length()),
                                services_.engine.config());
  }

  void Add() {
    if (absl::Status status = AddPart(); !status.ok()) return End(status);
    part_.Clear();
    call_.record().memory().ShrinkTo(0);
    Read();
  }
  absl::Status AddPart() {
    v1::SessionBytes message;
    RETURN_IF_ERROR(ParseMessage(part_, message, call_.record().memory()));
    if (message.has_ttl()) {
      options_.ttl = ToDuration(message.ttl());
      RETURN_IF_ERROR(engine::CheckTtl(services_.engine.config(), options_.ttl, ""));
    }
    return reader_->Add(message.data());
  }

  void Import() {
    absl::StatusOr<engine::SessionImage> image = reader_->Finish();
    if (!image.ok()) return End(image.status());
    services_.engine.sessions().Import(
        *std::move(image), options_, [self = shared_from_this()](auto session) {
          self->services_.blocking.Run(
              self->call_.record().client(),
              [self, session = std::move(session)] { self->Answer(session); });
        });
  }

  void Answer(const absl::StatusOr<engine::SessionInfo>& session) {
    if (!session.ok()) return End(session.status());
    if (call_.record().cancel()->cancelled()) {  // no client knows its id
      (void)services_.engine.sessions().Delete(session->id, session->tenant);
      return End(absl::CancelledError("cancelled by the client"));
    }
    v1::Session answer;
    Fill(*session, answer);
    call_.record().summary().SetSession(session->id);
    *response_ = SerializeMessage(answer);
    End(absl::OkStatus());
  }

  ServiceContext& services_;
  GrpcCall call_;
  grpc::ByteBuffer* const response_;
  TransferReservation reservation_;
  std::optional<engine::SessionReader> reader_;  // until the end
  engine::SessionOptions options_;
  grpc::ByteBuffer part_;
  std::mutex mutex_;                  // guards the next member
  bool reading_ = false;              // whoever sets it to false goes on with the call
  std::shared_ptr<ImportCall> self_;  // until OnDone
};

}  // namespace

WriteReactor* StartExport(std::shared_ptr<TransferBudget> budget, ServiceContext& services,
                          const char* label, grpc::CallbackServerContext* context,
                          const grpc::ByteBuffer* request) {
  auto call = std::make_shared<ExportCall>(std::move(budget), services, label, context);
  call->Start(request);
  return call.get();
}

grpc::ServerReadReactor<grpc::ByteBuffer>* StartImport(std::shared_ptr<TransferBudget> budget,
                                                       ServiceContext& services, const char* label,
                                                       grpc::CallbackServerContext* context,
                                                       grpc::ByteBuffer* response) {
  auto call = std::make_shared<ImportCall>(std::move(budget), services, label, context, response);
  call->Start();
  return call.get();
}

}  // namespace ovq::server
