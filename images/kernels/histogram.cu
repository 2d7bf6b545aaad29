// bins[v] += occurrences of byte v in data[0..n]; 256 bins in dynamic shared memory (1024 bytes)
extern "C" __global__ void histogram(const unsigned char *data, unsigned *bins, unsigned n)
{
    extern __shared__ unsigned local[];
    for (unsigned b = threadIdx.x; b < 256; b += blockDim.x)
        local[b] = 0;
    __syncthreads();
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[data[i]], 1u);
    __syncthreads();
    for (unsigned b = threadIdx.x; b < 256; b += blockDim.x)
        if (local[b])
            atomicAdd(&bins[b], local[b]);
}
