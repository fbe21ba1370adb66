/** Bytes that can be read in part: a Blob or File, a file on disk, bytes in memory. */
export interface Source {
  /** What the bytes are called in messages. */
  readonly name: string;
  /** In bytes. */
  readonly size: number;
  /** Bytes from `start` to `end`. Do not change them. */
  read(start: number, end: number): Promise<Uint8Array>;
  /** The same, into `target`, where that saves a copy; gives how many bytes there were. */
  readInto?(start: number, end: number, target: Uint8Array): Promise<number>;
  /** Nothing is read any more. */
  close(): Promise<void>;
}

/** A Source of bytes in memory. */
export function bytesSource(bytes: Uint8Array, name = "the model given as bytes"): Source {
  return { name, size: bytes.length, read: async (start, end) => bytes.subarray(start, end), close: async () => {} };
}

/** A Source of a Blob, a File among them. Browsers keep large ones outside of the page's memory. */
export function blobSource(blob: Blob, name = blob instanceof File ? blob.name : "the model given as a Blob"): Source {
  return {
    name,
    size: blob.size,
    read: async (start, end) => new Uint8Array(await blob.slice(start, end).arrayBuffer()),
    close: async () => {},
  };
}
