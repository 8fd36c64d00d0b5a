// How a client connects: plain text or TLS, with a token or without.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <string_view>

namespace ovq {

struct ChannelOptions {
  std::string server = "127.0.0.1:50051";
  // Paths of PEM files. TLS is used where tls_ca or tls_cert is given; without tls_ca the server's
  // certificate is checked against the system's authorities.
  std::string tls_ca, tls_cert, tls_key;
  std::string token_file;   // its first line is the token
  bool own_socket = false;  // else the process's channels to one server share a TCP connection
};

struct Connection {
  std::shared_ptr<grpc::Channel> channel;
  std::string authorization;  // the metadata of that name; empty: none

  // To be called once for every call.
  void Authorize(grpc::ClientContext& context) const;
};

// Metadata `ovq-session`: what has the same key reaches the same server through a balancer. A new
// session is made with a new key, which then begins the session's id, "KEY.RANDOM".
std::string NewSessionKey();
std::string SessionKeyOf(std::string_view session_id);  // empty for one that was made without
void AddSessionKey(const std::string& key, grpc::ClientContext& context);  // unless it is empty

// Reads the files; connects with the first call. Empty if all is well, else what is wrong, which
// names the flag and the file.
std::string Connect(const ChannelOptions& options, Connection& connection);

}  // namespace ovq
