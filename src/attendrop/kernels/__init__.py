"""Operations that are worth a kernel, each a folder of {api, reference, triton}.py. The reference specifies it."""
