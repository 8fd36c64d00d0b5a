#include "server/http/http_server.h"

#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/thread_name.h"
#include "server/http/connection.h"

namespace ovq::server {
namespace {

constexpr int kThreads = 2;
constexpr int kBacklog = 512;
// Same as for gRPC: a peer that vanished silently is noticed within 80 s.
constexpr int kKeepaliveIdle = 60, kKeepaliveInterval = 10, kKeepaliveCount = 2;
constexpr auto kAcceptAgain =
    std::chrono::milliseconds(100);  // after an error such as no free file descriptor

asio::const_buffer Buffer(const std::string& text) { return asio::buffer(text); }

// TLS 1.2 or 1.3 with material that LoadTls has checked; null if OpenSSL refuses it.
std::shared_ptr<asio::ssl::context> MakeContext(const TlsMaterial& material) {
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  ErrorCode error;
  const auto worked = [&error] { return !error; };
  context->set_options(asio::ssl::context::no_tlsv1 | asio::ssl::context::no_tlsv1_1, error);
  if (worked()) context->use_certificate_chain(Buffer(material.cert), error);
  if (worked()) context->use_private_key(Buffer(material.key), asio::ssl::context::pem, error);
  if (worked() && !material.client_ca.empty()) {
    context->add_certificate_authority(Buffer(material.client_ca), error);
    if (worked()) {
      context->set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert,
                               error);
    }
    // Without it OpenSSL ends the handshake of a client that resumes its session.
    constexpr std::string_view kSessions = "ovq http";
    SSL_CTX_set_session_id_context(context->native_handle(),
                                   reinterpret_cast<const unsigned char*>(kSessions.data()),
                                   kSessions.size());
  }
  return worked() ? context : nullptr;
}

std::string PeerName(const Tcp::endpoint& peer) {
  const bool v4 = peer.address().is_v4();
  ErrorCode ignored;
  const std::string address = peer.address().to_string(ignored);
  return absl::StrCat(v4 ? "ipv4:" : "ipv6:[", address, v4 ? ":" : "]:", peer.port());
}

class Server final : public HttpServer, private ConnectionHost {
 public:
  Server(const HttpOptions& options, HttpEvents events, HttpHandle handle)
      : ConnectionHost(options, std::move(events), std::move(handle)) {}
  ~Server() override { Shutdown(); }

  absl::Status Listen() {
    const size_t colon = options.address.rfind(':');
    std::string host = options.address.substr(0, colon);
    if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
    ErrorCode error;
    Tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(host, options.address.substr(colon + 1), Tcp::resolver::passive, error);
    for (auto entry = found.begin(); !acceptor_.is_open() && entry != found.end(); ++entry) {
      error = Bind(entry->endpoint());
    }
    if (!acceptor_.is_open()) {
      return absl::UnavailableError(absl::StrCat(options.flag, ": cannot listen on ",
                                                 options.address, ": ", error.message()));
    }
    Accept();
    for (int i = 0; i < kThreads; ++i) {
      threads_.emplace_back([this] {
        NameThisThread("http");
        io_.run();
      });
    }
    return absl::OkStatus();
  }

  int port() const override { return port_; }
  void EndConnections() override {
    ending = true;
    CloseAll(/*if_idle=*/true);
  }
  bool AwaitAnswers(absl::Time deadline) override {
    std::unique_lock lock(mutex_);
    return answered_.wait_until(lock, absl::ToChronoTime(deadline),
                                [this] { return requests_ == 0; });
  }
  void Shutdown() override {
    if (threads_.empty()) return;
    ending = true;
    // On the acceptor's strand, so that no connection is accepted after CloseAll.
    asio::post(acceptor_.get_executor(), [this] {
      ErrorCode ignored;
      acceptor_.close(ignored);
      retry_.cancel();
      CloseAll(/*if_idle=*/false);
      std::lock_guard lock(mutex_);
      closed_ = true;
      none_.notify_all();
    });
    {
      std::unique_lock lock(mutex_);
      none_.wait(lock, [this] { return closed_ && connections_.empty(); });
    }
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  using Connections = std::list<Connection*>;
  // The lists that an open connection is in.
  struct Places {
    Connections::iterator idle;     // end(): in none
    std::string host;               // address of the peer; empty: it gives way
    Connections::iterator of_host;  // in of_host_[host]
  };

  void SetIdle(Connection* connection, bool idle) override {
    std::lock_guard lock(mutex_);
    const auto found = connections_.find(connection);
    if (found == connections_.end()) return;
    Connections::iterator& place = found->second.idle;
    if (place != idle_.end()) idle_.erase(place);
    place = idle ? idle_.insert(idle_.end(), connection) : idle_.end();
  }
  void OnConnectionClosed(Connection* connection) override {
    SetIdle(connection, false);
    std::lock_guard lock(mutex_);
    const auto found = connections_.find(connection);
    if (found == connections_.end()) return;
    LeaveHost(found->second);
    connections_.erase(found);
    events.connections(static_cast<int>(connections_.size()));
    if (connections_.empty()) none_.notify_all();
  }
  void CountRequests(int more) override {
    std::lock_guard lock(mutex_);
    requests_ += more;
    if (requests_ == 0) answered_.notify_all();
  }

  // Leaves the acceptor closed on an error.
  ErrorCode Bind(const Tcp::endpoint& endpoint) {
    ErrorCode error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(Tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(kBacklog, error);
    if (!error) port_ = acceptor_.local_endpoint(error).port();
    ErrorCode ignored;
    if (error) acceptor_.close(ignored);
    return error;
  }

  void Accept() {
    acceptor_.async_accept(asio::make_strand(io_), [this](ErrorCode error, Tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (!error) {
        OpenConnection(std::move(socket));
        return Accept();
      }
      retry_.expires_after(kAcceptAgain);
      retry_.async_wait([this](ErrorCode cancelled) {
        if (!cancelled && acceptor_.is_open()) Accept();
      });
    });
  }

  void OpenConnection(Tcp::socket socket) {
    ErrorCode error;
    const Tcp::endpoint peer = socket.remote_endpoint(error);
    if (error) return;
    socket.set_option(Tcp::no_delay(true), error);
    socket.set_option(asio::socket_base::keep_alive(true), error);
    for (const auto& [option, value] :
         {std::pair(TCP_KEEPIDLE, kKeepaliveIdle), std::pair(TCP_KEEPINTVL, kKeepaliveInterval),
          std::pair(TCP_KEEPCNT, kKeepaliveCount)}) {
      setsockopt(socket.native_handle(), IPPROTO_TCP, option, &value, sizeof(value));
    }
    const std::string host = peer.address().to_string(error);
    if (!MakeRoom(host)) return events.refused("max_connections");
    std::shared_ptr<asio::ssl::context> tls;
    if (options.tls != nullptr) {
      tls = TlsContext();
      if (tls == nullptr) return events.refused("tls");
    }
    const std::shared_ptr<Connection> connection =
        MakeConnection(*this, PeerName(peer), std::move(socket), std::move(tls));
    {
      std::lock_guard lock(mutex_);
      Connections& of_host = of_host_[host];
      connections_.emplace(connection.get(),
                           Places{.idle = idle_.end(),
                                  .host = host,
                                  .of_host = of_host.insert(of_host.end(), connection.get())});
      events.connections(static_cast<int>(connections_.size()));
    }
    connection->Start();
  }

  // Makes room for one more connection of a host if needed: closes the one idle for longest, or if
  // none is, the newest of the host that has most, if it has more than this one would. False: none.
  bool MakeRoom(const std::string& host) {
    std::shared_ptr<Connection>
        closed;  // released without the lock, which OnConnectionClosed takes
    std::lock_guard lock(mutex_);
    if (connections_.size() < static_cast<size_t>(options.max_connections)) return true;
    const bool idle = !idle_.empty();
    Connection* const one = idle ? idle_.front() : NewestOfTheLargest(host);
    if (one == nullptr) return false;
    Places& places = connections_.at(one);
    if (idle) {
      places.idle = idle_.end();
      idle_.pop_front();
    } else {
      LeaveHost(places);  // so that the next newcomer closes another
    }
    closed = one->weak_from_this().lock();
    if (closed != nullptr) closed->Close(/*if_idle=*/idle);
    events.refused(idle ? "idle" : "gave_way");
    // The connection closes in a moment; until then there may be up to twice as many.
    return connections_.size() < 2 * static_cast<size_t>(options.max_connections);
  }
  // Null if no host has more connections than this one would have. With mutex_ held.
  Connection* NewestOfTheLargest(const std::string& host) {
    const auto largest = std::ranges::max_element(
        of_host_, {}, [](const auto& entry) { return entry.second.size(); });
    const auto own = of_host_.find(host);
    const size_t others = own == of_host_.end() ? 0 : own->second.size();
    if (largest == of_host_.end() || largest->second.size() <= others + 1) return nullptr;
    return largest->second.back();
  }
  void LeaveHost(Places& places) {  // with mutex_ held
    const auto of_host = of_host_.find(places.host);
    if (of_host == of_host_.end() || places.host.empty()) return;
    of_host->second.erase(places.of_host);
    if (of_host->second.empty()) of_host_.erase(of_host);
    places.host.clear();
  }
  void CloseAll(bool if_idle) {
    std::vector<std::shared_ptr<Connection>> all;  // released without the lock
    {
      std::lock_guard lock(mutex_);
      for (const auto& [connection, place] : connections_) {
        if (auto held = connection->weak_from_this().lock()) all.push_back(std::move(held));
      }
    }
    for (const auto& connection : all) connection->Close(if_idle);
  }

  // The context of the current certificate. Acceptor's strand.
  std::shared_ptr<asio::ssl::context> TlsContext() {
    std::shared_ptr<const TlsMaterial> current = options.tls->current();
    if (current != material_) {
      if (auto context = MakeContext(*current)) context_ = std::move(context);
      material_ = std::move(current);
    }
    return context_;
  }

  asio::io_context io_{kThreads};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_{
      asio::make_work_guard(io_)};
  Tcp::acceptor acceptor_{asio::make_strand(io_)};
  asio::steady_timer retry_{acceptor_.get_executor()};
  int port_ = 0;
  std::shared_ptr<const TlsMaterial> material_;
  std::shared_ptr<asio::ssl::context> context_;

  std::mutex mutex_;  // guards the seven members below
  int requests_ = 0;  // CountRequests
  std::condition_variable answered_;
  bool closed_ = false;  // no connection is added any more
  std::condition_variable none_;
  Connections idle_;                            // longest idle first
  std::map<std::string, Connections> of_host_;  // oldest first; without those that give way
  std::unordered_map<Connection*, Places> connections_;
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpOptions& options,
                                                              HttpEvents events,
                                                              HttpHandle handle) {
  auto server = std::make_unique<Server>(options, std::move(events), std::move(handle));
  RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace ovq::server
