// Stands in for libcudart.so.13: what CuPy calls of the CUDA runtime.
//
// Not there: memory pools of the driver, handles for other processes, page-locking of memory that is allocated already,
// arrays and textures. Those return an error and say so. Attributes are an A100's; elapsed times are the host's and
// mean nothing.
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "device.h"

using namespace standin;
using Error = cudaError_t;

namespace {
Error unsupported(const char* name) {
    fprintf(stderr, "stand-in: %s is not there\n", name);
    return cudaErrorNotSupported;
}
thread_local Error last = cudaSuccess;
Error failed(Error error) { return last = error; }
bool good_device(int d) { return d >= 0 && d < n_devices(); }
// Of an A100, but for what the environment says.
int attribute(int which) {
    switch (which) {
        case cudaDevAttrMaxThreadsPerBlock:
        case cudaDevAttrMaxBlockDimX:
        case cudaDevAttrMaxBlockDimY: return 1024;
        case cudaDevAttrMaxBlockDimZ: return 64;
        case cudaDevAttrMaxGridDimX: return 2147483647;
        case cudaDevAttrMaxGridDimY:
        case cudaDevAttrMaxGridDimZ: return 65535;
        case cudaDevAttrMaxSharedMemoryPerBlock: return 48 << 10;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: return 163 << 10;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 164 << 10;
        case cudaDevAttrReservedSharedMemoryPerBlock: return 1 << 10;
        case cudaDevAttrTotalConstantMemory: return 64 << 10;
        case cudaDevAttrWarpSize: return 32;
        case cudaDevAttrMaxPitch: return 2147483647;
        case cudaDevAttrMaxRegistersPerBlock:
        case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
        case cudaDevAttrClockRate: return 1410000;
        case cudaDevAttrMemoryClockRate: return 1215000;
        case cudaDevAttrGlobalMemoryBusWidth: return 5120;
        case cudaDevAttrTextureAlignment:
        case cudaDevAttrSurfaceAlignment: return 512;
        case cudaDevAttrTexturePitchAlignment: return 32;
        case cudaDevAttrMultiProcessorCount: return 108;
        case cudaDevAttrL2CacheSize: return 40 << 20;
        case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
        case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
        case cudaDevAttrComputeCapabilityMajor: return capability() / 10;
        case cudaDevAttrComputeCapabilityMinor: return capability() % 10;
        case cudaDevAttrAsyncEngineCount: return 3;
        case cudaDevAttrSingleToDoublePrecisionPerfRatio: return 2;
        case cudaDevAttrGpuOverlap:
        case cudaDevAttrCanMapHostMemory:
        case cudaDevAttrConcurrentKernels:
        case cudaDevAttrUnifiedAddressing:
        case cudaDevAttrStreamPrioritiesSupported:
        case cudaDevAttrManagedMemory:
        case cudaDevAttrGlobalL1CacheSupported:
        case cudaDevAttrLocalL1CacheSupported:
        case cudaDevAttrConcurrentManagedAccess:
        case cudaDevAttrComputePreemptionSupported:
        case cudaDevAttrCooperativeLaunch: return 1;
        default: return 0;
    }
}
}  // namespace

extern "C" {
const char* cudaGetErrorName(Error e) {
    switch (e) {
        case cudaSuccess: return "cudaSuccess";
        case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
        case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
        case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
        case cudaErrorNotSupported: return "cudaErrorNotSupported";
        case cudaErrorNotReady: return "cudaErrorNotReady";
        case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
        case cudaErrorPeerAccessUnsupported: return "cudaErrorPeerAccessUnsupported";
        case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
        default: return "cudaError";
    }
}
const char* cudaGetErrorString(Error e) {
    switch (e) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorNotSupported: return "operation not supported (by the stand-in)";
        case cudaErrorNotReady: return "device not ready";
        case cudaErrorInvalidResourceHandle: return "invalid resource handle";
        case cudaErrorPeerAccessUnsupported: return "peer access is not supported between these two devices";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        default: return "error of the stand-in";
    }
}
Error cudaGetLastError() {
    Error e = last;
    last = cudaSuccess;
    return e;
}
Error cudaPeekAtLastError() { return last; }
Error cudaDriverGetVersion(int* v) {
    *v = 13000;
    return cudaSuccess;
}
Error cudaRuntimeGetVersion(int* v) {
    *v = 13000;
    return cudaSuccess;
}
Error cudaGetDevice(int* d) {
    *d = current_device();
    return cudaSuccess;
}
Error cudaGetDeviceCount(int* n) {
    *n = n_devices();
    return cudaSuccess;
}
Error cudaSetDevice(int d) {
    if (!good_device(d)) return failed(cudaErrorInvalidDevice);
    current_device() = d;
    return cudaSuccess;
}
Error cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int d) {
    if (!good_device(d)) return failed(cudaErrorInvalidDevice);
    *value = attribute(int(which));
    return cudaSuccess;
}
Error cudaDeviceGetByPCIBusId(int* d, const char*) {
    *d = 0;
    return cudaSuccess;
}
Error cudaDeviceGetPCIBusId(char* text, int n, int d) {
    snprintf(text, size_t(n), "0000:%02x:00.0", d);
    return cudaSuccess;
}
Error cudaGetDeviceProperties(cudaDeviceProp* p, int d) {
    if (!good_device(d)) return failed(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "CPU stand-in");
    p->totalGlobalMem = total_memory();
    p->sharedMemPerBlock = 48 << 10;
    p->sharedMemPerBlockOptin = 163 << 10;
    p->sharedMemPerMultiprocessor = 164 << 10;
    p->reservedSharedMemPerBlock = 1 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 64 << 10;
    p->major = capability() / 10;
    p->minor = capability() % 10;
    p->textureAlignment = p->surfaceAlignment = 512;
    p->texturePitchAlignment = 32;
    p->multiProcessorCount = 108;
    p->l2CacheSize = 40 << 20;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->memoryBusWidth = 5120;
    p->concurrentKernels = p->canMapHostMemory = p->unifiedAddressing = p->managedMemory = p->asyncEngineCount = 1;
    p->streamPrioritiesSupported = p->cooperativeLaunch = 1;
    p->pciBusID = d;
    return cudaSuccess;
}
Error cudaDeviceSynchronize() {
    count("sync device");
    finish_device();
    return cudaSuccess;
}
Error cudaDeviceCanAccessPeer(int* can, int a, int b) {
    *can = a == b || has_peers();
    return cudaSuccess;
}
Error cudaDeviceEnablePeerAccess(int, unsigned) {
    return has_peers() ? cudaSuccess : failed(cudaErrorPeerAccessUnsupported);
}
Error cudaDeviceDisablePeerAccess(int) { return cudaSuccess; }
Error cudaDeviceGetLimit(size_t* v, cudaLimit) {
    *v = 0;
    return cudaSuccess;
}
Error cudaDeviceSetLimit(cudaLimit, size_t) { return cudaSuccess; }

Error cudaMalloc(void** p, size_t n) {
    *p = allocate(n, DEVICE);
    if (!*p) {
        count("out of memory");
        return failed(cudaErrorMemoryAllocation);
    }
    count("device allocations");
    count("device allocations, bytes", n);
    return cudaSuccess;
}
Error cudaMallocManaged(void** p, size_t n, unsigned) {
    *p = allocate(n, MANAGED);
    return *p ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
Error cudaMallocAsync(void** p, size_t n, cudaStream_t) { return cudaMalloc(p, n); }
Error cudaMallocFromPoolAsync(void** p, size_t n, cudaMemPool_t, cudaStream_t) { return cudaMalloc(p, n); }
Error cudaFree(void* p) {
    if (!p) return cudaSuccess;
    count("device frees");
    finish_device();
    return release(p, DEVICE) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
Error cudaFreeAsync(void* p, cudaStream_t) { return cudaFree(p); }
Error cudaHostAlloc(void** p, size_t n, unsigned) {
    *p = allocate(n, PINNED);
    count("pinned allocations");
    count("pinned allocations, bytes", n);
    return *p ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
Error cudaFreeHost(void* p) {
    if (!p) return cudaSuccess;
    count("pinned frees");
    finish_device();
    return release(p, PINNED) ? cudaSuccess : failed(cudaErrorInvalidValue);
}
Error cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    *total = total_memory();
    *free_bytes = *total - used_memory(current_device());
    return cudaSuccess;
}
Error cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind kind) {
    copy(to, n, from, n, n, 1, kind, nullptr, true);
    return cudaSuccess;
}
Error cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind kind, cudaStream_t s) {
    copy(to, n, from, n, n, 1, kind, s, false);
    return cudaSuccess;
}
Error cudaMemcpyPeer(void* to, int, const void* from, int, size_t n) {
    count("copy between devices");
    return cudaMemcpy(to, from, n, cudaMemcpyDefault);
}
Error cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t n, cudaStream_t s) {
    count("copy between devices");
    return cudaMemcpyAsync(to, from, n, cudaMemcpyDefault, s);
}
Error cudaMemcpy2D(void* to, size_t tp, const void* from, size_t fp, size_t w, size_t h, cudaMemcpyKind kind) {
    copy(to, tp, from, fp, w, h, kind, nullptr, true);
    return cudaSuccess;
}
Error cudaMemcpy2DAsync(void* to, size_t tp, const void* from, size_t fp, size_t w, size_t h, cudaMemcpyKind kind,
                        cudaStream_t s) {
    copy(to, tp, from, fp, w, h, kind, s, false);
    return cudaSuccess;
}
Error cudaMemset(void* p, int v, size_t n) {
    set(p, v, n, nullptr);
    return cudaSuccess;
}
Error cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t s) {
    set(p, v, n, s);
    return cudaSuccess;
}
Error cudaMemPrefetchAsync(const void*, size_t, cudaMemLocation, unsigned, cudaStream_t) { return cudaSuccess; }
Error cudaMemAdvise(const void*, size_t, cudaMemoryAdvise, cudaMemLocation) { return cudaSuccess; }
Error cudaPointerGetAttributes(cudaPointerAttributes* a, const void* p) {
    memset(a, 0, sizeof *a);
    const Block b = block_of(p);
    a->type = b.kind == DEVICE    ? cudaMemoryTypeDevice
              : b.kind == PINNED  ? cudaMemoryTypeHost
              : b.kind == MANAGED ? cudaMemoryTypeManaged
                                  : cudaMemoryTypeUnregistered;
    a->device = b.kind == HOST ? -2 : b.device;
    a->devicePointer = b.kind == HOST ? nullptr : const_cast<void*>(p);
    a->hostPointer = b.kind == DEVICE ? nullptr : const_cast<void*>(p);
    return cudaSuccess;
}

Error cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
    *s = static_cast<cudaStream_t>(new_stream(!(flags & cudaStreamNonBlocking)));
    count("streams made");
    return cudaSuccess;
}
Error cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithFlags(s, 0); }
Error cudaStreamCreateWithPriority(cudaStream_t* s, unsigned flags, int) { return cudaStreamCreateWithFlags(s, flags); }
Error cudaStreamGetFlags(cudaStream_t, unsigned* f) {
    *f = 0;
    return cudaSuccess;
}
Error cudaStreamGetPriority(cudaStream_t, int* p) {
    *p = 0;
    return cudaSuccess;
}
Error cudaStreamDestroy(cudaStream_t s) {
    return delete_stream(s) ? cudaSuccess : failed(cudaErrorInvalidResourceHandle);
}
Error cudaStreamSynchronize(cudaStream_t s) {
    if (is_capturing(s)) return failed(cudaErrorStreamCaptureUnsupported);
    count("sync stream");
    finish_stream(s);
    return cudaSuccess;
}
Error cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void* data, unsigned) {
    enqueue(s, [=] { f(s, cudaSuccess, data); });
    return cudaSuccess;
}
Error cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void* data) {
    enqueue(s, [=] { f(data); });
    return cudaSuccess;
}
Error cudaStreamQuery(cudaStream_t s) {
    if (is_capturing(s)) return failed(cudaErrorStreamCaptureUnsupported);
    progress();
    return stream_idle(s) ? cudaSuccess : cudaErrorNotReady;
}
Error cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
    count("stream waits for event");
    wait(s, e);
    return cudaSuccess;
}
Error cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
    return begin_capture(s) ? cudaSuccess : failed(cudaErrorStreamCaptureUnsupported);
}
Error cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* g) {
    *g = static_cast<cudaGraph_t>(end_capture(s));
    return *g ? cudaSuccess : failed(cudaErrorIllegalState);
}
Error cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* status) {
    *status = is_capturing(s) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
Error cudaGraphInstantiate(cudaGraphExec_t* e, cudaGraph_t g, unsigned long long) {
    *e = static_cast<cudaGraphExec_t>(copy_graph(g));
    return cudaSuccess;
}
Error cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
    launch_graph(e, s);
    return cudaSuccess;
}
Error cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
Error cudaGraphDestroy(cudaGraph_t g) {
    delete_graph(g);
    return cudaSuccess;
}
Error cudaGraphExecDestroy(cudaGraphExec_t e) {
    delete_graph(e);
    return cudaSuccess;
}
Error cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
    *e = static_cast<cudaEvent_t>(new_event());
    return cudaSuccess;
}
Error cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
Error cudaEventDestroy(cudaEvent_t e) {
    delete_event(e);
    return cudaSuccess;
}
Error cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
    *ms = float(1e3 * (event_time(b) - event_time(a)));
    return cudaSuccess;
}
Error cudaEventQuery(cudaEvent_t e) { return event_done(e) ? cudaSuccess : cudaErrorNotReady; }
Error cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
    count("event records");
    record(e, s);
    return cudaSuccess;
}
Error cudaEventSynchronize(cudaEvent_t e) {
    count("sync event");
    finish_event(e);
    return cudaSuccess;
}
Error cudaProfilerStart() { return cudaSuccess; }
Error cudaProfilerStop() { return cudaSuccess; }

// ---- what CuPy looks up and we do not have
#define NOT_THERE(name, ...) \
    Error name(__VA_ARGS__) { return unsupported(#name); }
NOT_THERE(cudaIpcCloseMemHandle, void*)
NOT_THERE(cudaIpcGetEventHandle, cudaIpcEventHandle_t*, cudaEvent_t)
NOT_THERE(cudaIpcGetMemHandle, cudaIpcMemHandle_t*, void*)
NOT_THERE(cudaIpcOpenEventHandle, cudaEvent_t*, cudaIpcEventHandle_t)
NOT_THERE(cudaIpcOpenMemHandle, void**, cudaIpcMemHandle_t, unsigned)
NOT_THERE(cudaHostRegister, void*, size_t, unsigned)
NOT_THERE(cudaHostUnregister, void*)
NOT_THERE(cudaDeviceGetDefaultMemPool, cudaMemPool_t*, int)
NOT_THERE(cudaDeviceGetMemPool, cudaMemPool_t*, int)
NOT_THERE(cudaDeviceSetMemPool, int, cudaMemPool_t)
NOT_THERE(cudaMemPoolCreate, cudaMemPool_t*, const cudaMemPoolProps*)
NOT_THERE(cudaMemPoolDestroy, cudaMemPool_t)
NOT_THERE(cudaMemPoolTrimTo, cudaMemPool_t, size_t)
NOT_THERE(cudaMemPoolGetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
NOT_THERE(cudaMemPoolSetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
NOT_THERE(cudaMalloc3DArray, cudaArray_t*, const cudaChannelFormatDesc*, cudaExtent, unsigned)
NOT_THERE(cudaMallocArray, cudaArray_t*, const cudaChannelFormatDesc*, size_t, size_t, unsigned)
NOT_THERE(cudaFreeArray, cudaArray_t)
NOT_THERE(cudaMemcpy2DFromArray, void*, size_t, cudaArray_const_t, size_t, size_t, size_t, size_t, cudaMemcpyKind)
NOT_THERE(cudaMemcpy2DFromArrayAsync, void*, size_t, cudaArray_const_t, size_t, size_t, size_t, size_t, cudaMemcpyKind,
          cudaStream_t)
NOT_THERE(cudaMemcpy2DToArray, cudaArray_t, size_t, size_t, const void*, size_t, size_t, size_t, cudaMemcpyKind)
NOT_THERE(cudaMemcpy2DToArrayAsync, cudaArray_t, size_t, size_t, const void*, size_t, size_t, size_t, cudaMemcpyKind,
          cudaStream_t)
NOT_THERE(cudaMemcpy3D, const cudaMemcpy3DParms*)
NOT_THERE(cudaMemcpy3DAsync, const cudaMemcpy3DParms*, cudaStream_t)
NOT_THERE(cudaCreateTextureObject, cudaTextureObject_t*, const cudaResourceDesc*, const cudaTextureDesc*,
          const cudaResourceViewDesc*)
NOT_THERE(cudaDestroyTextureObject, cudaTextureObject_t)
NOT_THERE(cudaGetChannelDesc, cudaChannelFormatDesc*, cudaArray_const_t)
NOT_THERE(cudaGetTextureObjectResourceDesc, cudaResourceDesc*, cudaTextureObject_t)
NOT_THERE(cudaGetTextureObjectTextureDesc, cudaTextureDesc*, cudaTextureObject_t)
NOT_THERE(cudaCreateSurfaceObject, cudaSurfaceObject_t*, const cudaResourceDesc*)
NOT_THERE(cudaDestroySurfaceObject, cudaSurfaceObject_t)
NOT_THERE(cudaGraphDebugDotPrint, cudaGraph_t, const char*, unsigned)
}
