#include "server/engine/sessions/session_operations.h"

#include <future>
#include <span>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/engine/common/validate.h"

namespace ovq::engine {
namespace {

// Checks that a session begins with the tokens of an earlier export.
absl::Status CheckGoesOn(const std::string& id, const SessionImage& session,
                         const SessionBase& since) {
  const auto refused = [&id](const auto&... what) {
    return absl::FailedPreconditionError(absl::StrCat("session ", id, ": ", what...));
  };
  if (!session.tokens) return refused("keeps no tokens (keep_tokens), so there is no delta of it");
  if (since.length > session.length()) {
    return refused("has ", session.length(), " tokens, but the export that `since` names had ",
                   since.length, ": it has gone back since; export it whole");
  }
  const auto length = static_cast<size_t>(since.length);
  if (MakeSessionBase(std::span(*session.tokens).first(length)).digest == since.digest) return {};
  return refused("its first ", since.length,
                 " tokens are not those of the export that `since` names: it has gone back and on "
                 "another way since, or that was another session's; export it whole");
}

}  // namespace

template <class T>
void SessionOperations::Begin(
    absl::Status status, std::function<void(absl::StatusOr<T>)> done,
    std::function<void(SteadyTime called, std::function<void(absl::StatusOr<T>)>)> begin) {
  inbox_->Post([this, status = std::move(status), done = std::move(done), begin = std::move(begin),
                called = config_.options.clock.steady()]() mutable {
    if (status.ok()) status = parts_.admission.Enter();
    if (!status.ok()) return done(std::move(status));
    begin(called, [this, done = std::move(done)](absl::StatusOr<T> result) {
      done(std::move(result));
      parts_.admission.Leave();
    });
  });
}

void SessionOperations::Create(SessionOptions options, SessionCallback done) {
  absl::Status status = ValidateSession(config_, options);
  if (options.cancel != nullptr) options.cancel->SetWake(inbox_->waker());
  Begin<SessionInfo>(
      std::move(status), std::move(done),
      [this, options = std::move(options)](SteadyTime called, SessionCallback done) mutable {
        parts_.creator.Create(std::move(options), called, std::move(done));
      });
}

void SessionOperations::Fork(ForkOptions options, SessionsCallback done) {
  absl::Status status = ValidateFork(config_, options);
  Begin<std::vector<SessionInfo>>(
      std::move(status), std::move(done),
      [this, options = std::move(options)](SteadyTime called, SessionsCallback done) {
        parts_.pins.Pin(options.session_id, options.tenant, [=, this](auto pin) {
          if (!pin.ok()) return done(pin.status());
          parts_.creator.Fork(*std::move(pin), options, called, done);
        });
      });
}

void SessionOperations::Rewind(RewindOptions options, std::shared_ptr<CancelSignal> cancel,
                               RewindCallback done) {
  if (cancel != nullptr) cancel->SetWake(inbox_->waker());
  Begin<RewindResult>(absl::OkStatus(), std::move(done),
                      [this, options = std::move(options), cancel = std::move(cancel)](
                          SteadyTime called, RewindCallback done) {
                        parts_.pins.Pin(options.session_id, options.tenant, [=, this](auto pin) {
                          if (!pin.ok()) return done(pin.status());
                          parts_.rewinder.Rewind(*std::move(pin), options, cancel, called, done);
                        });
                      });
}

absl::StatusOr<SessionImage> SessionOperations::Export(const std::string& id,
                                                       const std::string& tenant,
                                                       const std::optional<SessionBase>& since) {
  using Image = absl::StatusOr<SessionImage>;
  const SteadyTime called = config_.options.clock.steady();
  Image image = inbox_->Await<Image>([&](const std::function<void(Image)>& tell) {
    parts_.pins.Pin(id, tenant, [=, this, whole = !since](auto pin) {
      if (!pin.ok()) return tell(pin.status());
      // A turn that claims the session from now on starts later, on this thread.
      const std::shared_ptr<Session> session = (*pin)->Release();
      tell(parts_.disk.MakeExport(*session, whole));
    });
  });
  // On the caller's thread: a digest of millions of tokens would delay an iteration.
  if (image.ok() && since) {
    RETURN_IF_ERROR(CheckGoesOn(id, *image, *since));
  }
  if (image.ok()) {
    inbox_->Post([this, event = since ? "export_delta" : "export", called,
                  length = image->length()] { parts_.table.ReportEvent(event, length, called); });
  }
  return image;
}

absl::Status SessionOperations::CheckImport(const SessionImage& head) const {
  const ModelVariant* variant = config_.model.FindVariant(head.cache_policy);
  if (variant == nullptr) {
    return UnfitFile("no memory of this server is named '", absl::CHexEscape(head.cache_policy),
                     "'");
  }
  if (head.slot_cap > config_.options.max_slot_cap) {
    return UnfitFile("expected at most ", config_.options.max_slot_cap, " max_centroids, got ",
                     head.slot_cap);
  }
  return CheckSessionFits(head, variant->fingerprint, *variant->layout, config_.model.vocab_size);
}

absl::Status SessionOperations::ReadUnfinished(const SessionImage& image,
                                               SessionOptions& options) const {
  if (image.unfinished.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(UnfinishedAnswer answer,
                   DecodeUnfinished(image.unfinished, config_.model.vocabulary.get(),
                                    config_.options.constraint_limits,
                                    config_.options.request_memory, options.client));
  const auto n_tokens = std::ssize(answer.tokens);
  const bool fits = image.tokens
                        ? n_tokens <= std::ssize(*image.tokens) &&
                              std::equal(answer.tokens.begin(), answer.tokens.end(),
                                         image.tokens->end() - n_tokens)
                        : n_tokens <= image.length() && answer.tokens.back() == image.pending;
  if (!fits) return DamagedFile("section form: its tokens are not the last of the conversation");
  options.unfinished = std::make_shared<const UnfinishedAnswer>(std::move(answer));
  return absl::OkStatus();
}

void SessionOperations::Import(SessionImage image, SessionOptions options, SessionCallback done) {
  options.imported = true;
  options.variant = image.cache_policy;
  if (image.slot_cap > 0) options.slot_cap = image.slot_cap;
  const ImportKind kind = image.state_signed                    ? ImportKind::kSigned
                          : config_.options.trust_session_files ? ImportKind::kTrusted
                                                                : ImportKind::kReplayed;
  const bool trusted = kind != ImportKind::kReplayed;
  done = [this, kind, done = std::move(done)](absl::StatusOr<SessionInfo> made) {
    if (made.ok()) config_.events.session_imported(kind);
    done(std::move(made));
  };
  absl::Status status = CheckImport(image);
  if (status.ok() && !trusted && !image.tokens) {
    status = UnfitFile(
        "it has no tokens to read again (keep_tokens), and no key of this server has signed its "
        "state (--fleet-key-file, --imports replay)");
  }
  if (status.ok()) status = ReadUnfinished(image, options);
  image.unfinished.clear();
  if (status.ok() && !trusted) {
    options.prompt = *std::move(image.tokens);
    return Create(std::move(options), std::move(done));
  }
  if (status.ok()) status = ValidateSession(config_, options);
  if (status.ok())
    status = CheckSessionState(image, *config_.model.FindVariant(image.cache_policy)->layout);
  Begin<SessionInfo>(std::move(status), std::move(done),
                     [this, image = std::make_shared<const SessionImage>(std::move(image)),
                      options = std::move(options)](SteadyTime called, SessionCallback done) {
                       parts_.creator.Create(options, called, std::move(done), image);
                     });
}

absl::Status SessionOperations::Delete(const std::string& id,
                                       const std::optional<std::string>& tenant) {
  return inbox_->Await<absl::Status>([&](const std::function<void(absl::Status)>& tell) {
    const SteadyTime called = config_.options.clock.steady();
    parts_.ownership.Acquire(id, tenant, [this, id, tenant, called, tell](absl::Status status) {
      if (!status.ok()) return tell(std::move(status));
      parts_.removal.Delete(id, tenant, called, tell);
    });
  });
}

std::vector<std::string> SessionOperations::Adopt(std::vector<store::FoundSession> found) {
  return inbox_->Call<std::vector<std::string>>([&] {
    std::vector<std::string> left;
    for (store::FoundSession& one : found) {
      const absl::Status status = parts_.ownership.Register(std::move(one));
      if (!status.ok()) left.emplace_back(status.message());
    }
    return left;
  });
}

void SessionOperations::Get(const std::string& id, const std::string& tenant,
                            SessionCallback done) {
  const auto get = [this, id, tenant] {
    absl::StatusOr<SessionInfo> info = parts_.table.Get(id, tenant);
    if (info.ok() && parts_.ownership.MayBeElsewhere(id)) info->durable = false;
    return info;
  };
  if (!parts_.ownership.MayBeElsewhere(id)) {
    absl::StatusOr<SessionInfo> info = get();
    // It may have gone to another server between the two.
    if (!absl::IsNotFound(info.status()) || !parts_.ownership.MayBeElsewhere(id)) {
      return done(std::move(info));
    }
  }
  inbox_->Post([this, id, tenant, get, done = std::move(done)] {
    parts_.ownership.Acquire(id, tenant, [get, done](absl::Status status) {
      if (!status.ok()) return done(std::move(status));
      done(get());
    });
  });
}

absl::StatusOr<SessionInfo> SessionOperations::Get(const std::string& id,
                                                   const std::string& tenant) {
  std::promise<absl::StatusOr<SessionInfo>> info;
  Get(id, tenant, [&info](absl::StatusOr<SessionInfo> got) { info.set_value(std::move(got)); });
  return info.get_future().get();
}

absl::Status SessionOperations::PutText(const std::string& id, const std::string& tenant,
                                        std::string text) {
  const SessionText kept = std::make_shared<const std::string>(std::move(text));
  return inbox_->Await<absl::Status>([&](const std::function<void(absl::Status)>& tell) {
    parts_.ownership.Acquire(id, tenant, [this, id, tenant, kept, tell](absl::Status status) {
      if (!status.ok()) return tell(std::move(status));
      PutTextHere(id, tenant, kept, tell);
    });
  });
}

void SessionOperations::PutTextHere(const std::string& id, const std::string& tenant,
                                    const SessionText& text, const StatusCallback& then) {
  const absl::StatusOr<std::shared_ptr<Session>> found = parts_.table.Find(id, tenant);
  if (!found.ok()) return then(found.status());
  const std::shared_ptr<Session>& session = *found;
  if (!session->disk) return parts_.table.texts().Put(session->info, text, then);
  // Until the text is written, no other server acquires the session.
  ++session->disk->texts_pending;
  parts_.table.texts().Put(session->info, text,
                           [inbox = inbox_, session, then](absl::Status status) {
                             inbox->Post([session] { --session->disk->texts_pending; });
                             then(std::move(status));
                           });
}

void SessionOperations::GetText(const std::string& id, const std::string& tenant,
                                std::function<absl::Status(size_t bytes)> reserve,
                                SessionTextCallback done) {
  Get(id, tenant,
      [this, reserve = std::move(reserve),
       done = std::move(done)](absl::StatusOr<SessionInfo> info) {
        if (!info.ok()) return done(info.status());
        parts_.table.texts().Get(info->id, reserve, done);
      });
}

absl::StatusOr<SessionText> SessionOperations::GetText(
    const std::string& id, const std::string& tenant,
    const std::function<absl::Status(size_t bytes)>& reserve) {
  std::promise<absl::StatusOr<SessionText>> text;
  GetText(id, tenant, reserve,
          [&text](absl::StatusOr<SessionText> got) { text.set_value(std::move(got)); });
  return text.get_future().get();
}

absl::StatusOr<SessionPage> SessionOperations::List(const std::optional<std::string>& tenant,
                                                    int page_size,
                                                    const std::string& page_token) const {
  return parts_.table.List(tenant, page_size, page_token);
}

}  // namespace ovq::engine
