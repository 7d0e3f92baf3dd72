// A stand-in for Triton's onnxruntime backend: it runs the graph through OpenVINO, so that the real Triton core can be
// tested where only its Python wheel is at hand. Configuration, sequence batcher, states and warm-up are the core's own.
//
// The wheel ships no headers: what is used of the backend interface is declared here.
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <openvino/openvino.hpp>

struct TRITONSERVER_Error;
struct TRITONBACKEND_Model;
struct TRITONBACKEND_ModelInstance;
struct TRITONBACKEND_Request;
struct TRITONBACKEND_Response;
struct TRITONBACKEND_Input;
struct TRITONBACKEND_Output;
struct TRITONBACKEND_State;
enum ArtifactType { ARTIFACT_FILESYSTEM };
enum DataType { TYPE_INT32 = 8, TYPE_FP32 = 11 };
enum MemoryType { MEMORY_CPU };
constexpr uint32_t RELEASE_ALL = 1, RESPONSE_FINAL = 1;

extern "C" {
const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error*);
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error*);
TRITONSERVER_Error* TRITONSERVER_ErrorNew(int code, const char* message);
TRITONSERVER_Error* TRITONBACKEND_ModelRepository(TRITONBACKEND_Model*, ArtifactType*, const char**);
TRITONSERVER_Error* TRITONBACKEND_ModelVersion(TRITONBACKEND_Model*, uint64_t*);
TRITONSERVER_Error* TRITONBACKEND_ModelSetState(TRITONBACKEND_Model*, void*);
TRITONSERVER_Error* TRITONBACKEND_ModelState(TRITONBACKEND_Model*, void**);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance*, TRITONBACKEND_Model**);
TRITONSERVER_Error* TRITONBACKEND_RequestInput(TRITONBACKEND_Request*, const char*, TRITONBACKEND_Input**);
TRITONSERVER_Error* TRITONBACKEND_RequestRelease(TRITONBACKEND_Request*, uint32_t);
TRITONSERVER_Error* TRITONBACKEND_InputProperties(
    TRITONBACKEND_Input*, const char**, DataType*, const int64_t**, uint32_t*, uint64_t*, uint32_t*);
TRITONSERVER_Error* TRITONBACKEND_InputBuffer(
    TRITONBACKEND_Input*, uint32_t, const void**, uint64_t*, MemoryType*, int64_t*);
TRITONSERVER_Error* TRITONBACKEND_ResponseNew(TRITONBACKEND_Response**, TRITONBACKEND_Request*);
TRITONSERVER_Error* TRITONBACKEND_ResponseOutput(
    TRITONBACKEND_Response*, TRITONBACKEND_Output**, const char*, DataType, const int64_t*, uint32_t);
TRITONSERVER_Error* TRITONBACKEND_ResponseSend(TRITONBACKEND_Response*, uint32_t, TRITONSERVER_Error*);
TRITONSERVER_Error* TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output*, void**, uint64_t, MemoryType*, int64_t*);
TRITONSERVER_Error* TRITONBACKEND_StateNew(
    TRITONBACKEND_State**, TRITONBACKEND_Request*, const char*, DataType, const int64_t*, uint32_t);
TRITONSERVER_Error* TRITONBACKEND_StateBuffer(TRITONBACKEND_State*, void**, uint64_t, MemoryType*, int64_t*);
TRITONSERVER_Error* TRITONBACKEND_StateUpdate(TRITONBACKEND_State*);
}

namespace {

void check(TRITONSERVER_Error* error, const std::string& what) {
  if (!error) return;
  const std::string message = what + ": " + TRITONSERVER_ErrorMessage(error);
  TRITONSERVER_ErrorDelete(error);
  throw std::runtime_error(message);
}

struct Graph {
  ov::InferRequest request;
  ov::CompiledModel compiled;
};

// The part of one request in one input.
struct Part {
  std::vector<int64_t> shape;
  std::string bytes;
};

Part part_of(TRITONBACKEND_Request* request, const std::string& name) {
  TRITONBACKEND_Input* input;
  check(TRITONBACKEND_RequestInput(request, name.c_str(), &input), "input " + name);
  const char* given;
  DataType type;
  const int64_t* shape;
  uint32_t n_dims, n_buffers;
  uint64_t n_bytes;
  check(TRITONBACKEND_InputProperties(input, &given, &type, &shape, &n_dims, &n_bytes, &n_buffers), name);
  Part part{{shape, shape + n_dims}, {}};
  for (uint32_t i = 0; i < n_buffers; ++i) {
    const void* buffer;
    uint64_t size;
    MemoryType memory = MEMORY_CPU;
    int64_t device = 0;
    check(TRITONBACKEND_InputBuffer(input, i, &buffer, &size, &memory, &device), name);
    part.bytes.append(static_cast<const char*>(buffer), size);
  }
  return part;
}

void execute(Graph& graph, TRITONBACKEND_Request** requests, uint32_t n_requests) {
  std::vector<int64_t> lanes(n_requests);
  for (const auto& port : graph.compiled.inputs()) {
    const std::string name = port.get_any_name();
    std::vector<int64_t> shape;
    std::string bytes;
    for (uint32_t i = 0; i < n_requests; ++i) {
      Part part = part_of(requests[i], name);
      lanes[i] = part.shape[0];
      if (i == 0) shape = part.shape;
      else shape[0] += part.shape[0];
      bytes += part.bytes;
    }
    ov::Tensor tensor(port.get_element_type(), ov::Shape(shape.begin(), shape.end()));
    if (tensor.get_byte_size() != bytes.size()) throw std::runtime_error(name + ": bytes do not fit its shape");
    std::memcpy(tensor.data(), bytes.data(), bytes.size());
    graph.request.set_tensor(name, tensor);
  }
  graph.request.infer();
  int64_t all = 0;
  for (int64_t n : lanes) all += n;
  std::cerr << "stand-in: " << n_requests << " requests, " << all << " lanes" << std::endl;

  std::vector<TRITONBACKEND_Response*> responses(n_requests);
  for (uint32_t i = 0; i < n_requests; ++i) check(TRITONBACKEND_ResponseNew(&responses[i], requests[i]), "response");
  for (const auto& port : graph.compiled.outputs()) {
    const std::string name = port.get_any_name();
    const ov::Tensor tensor = graph.request.get_tensor(name);
    const DataType type = tensor.get_element_type() == ov::element::i32 ? TYPE_INT32 : TYPE_FP32;
    const ov::Shape whole = tensor.get_shape();
    const char* next = static_cast<const char*>(tensor.data());
    for (uint32_t i = 0; i < n_requests; ++i) {
      std::vector<int64_t> shape(whole.begin(), whole.end());
      const uint64_t size = tensor.get_byte_size() / whole[0] * lanes[i];
      shape[0] = lanes[i];
      void* buffer;
      MemoryType memory = MEMORY_CPU;
      int64_t device = 0;
      if (name == "y") {
        TRITONBACKEND_Output* output;
        check(TRITONBACKEND_ResponseOutput(responses[i], &output, name.c_str(), type, shape.data(), shape.size()), name);
        check(TRITONBACKEND_OutputBuffer(output, &buffer, size, &memory, &device), name);
        std::memcpy(buffer, next, size);
      } else {
        TRITONBACKEND_State* state;
        TRITONSERVER_Error* error =
            TRITONBACKEND_StateNew(&state, requests[i], name.c_str(), type, shape.data(), shape.size());
        if (error) {  // a warm-up request belongs to no sequence
          if (name.find(".00.") != std::string::npos) std::cerr << "stand-in: warm-up" << std::endl;
          TRITONSERVER_ErrorDelete(error);
        } else {
          check(TRITONBACKEND_StateBuffer(state, &buffer, size, &memory, &device), name);
          std::memcpy(buffer, next, size);
          check(TRITONBACKEND_StateUpdate(state), name);
        }
      }
      next += size;
    }
  }
  for (uint32_t i = 0; i < n_requests; ++i) {
    check(TRITONBACKEND_ResponseSend(responses[i], RESPONSE_FINAL, nullptr), "send");
    check(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL), "release");
  }
}

}  // namespace

extern "C" {

TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  try {
    ArtifactType type;
    const char* folder;
    uint64_t version;
    check(TRITONBACKEND_ModelRepository(model, &type, &folder), "repository");
    check(TRITONBACKEND_ModelVersion(model, &version), "version");
    const std::string path = std::string(folder) + "/" + std::to_string(version) + "/model.onnx";
    auto* graph = new Graph;
    const ov::AnyMap settings{
        ov::hint::inference_precision(ov::element::f32), ov::inference_num_threads(1), ov::num_streams(1)};
    graph->compiled = ov::Core().compile_model(path, "CPU", settings);
    graph->request = graph->compiled.create_infer_request();
    check(TRITONBACKEND_ModelSetState(model, graph), "state");
  } catch (const std::exception& error) {
    return TRITONSERVER_ErrorNew(0, error.what());
  }
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  void* graph;
  check(TRITONBACKEND_ModelState(model, &graph), "state");
  delete static_cast<Graph*>(graph);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests, uint32_t n_requests) {
  try {
    TRITONBACKEND_Model* model;
    void* graph;
    check(TRITONBACKEND_ModelInstanceModel(instance, &model), "model");
    check(TRITONBACKEND_ModelState(model, &graph), "state");
    execute(*static_cast<Graph*>(graph), requests, n_requests);
  } catch (const std::exception& error) {
    return TRITONSERVER_ErrorNew(0, error.what());
  }
  return nullptr;
}

}  // extern "C"
