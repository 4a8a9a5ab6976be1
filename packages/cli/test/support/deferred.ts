export interface Deferred {
  promise: Promise<void>;
  resolve: () => void;
}

/** A promise that a test settles from outside (Node 20 has no Promise.withResolvers). */
export function deferred(): Deferred {
  let resolve: () => void = () => undefined;
  const promise = new Promise<void>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}
