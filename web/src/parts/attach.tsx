// Images that go with a message: chosen, dropped or pasted, and how they are shown.
import { useRef } from "preact/hooks";

const TYPES = "image/png,image/jpeg,image/webp,image/gif";

/** The images among what was dropped or pasted. */
export function imagesOf(data: DataTransfer | null): File[] {
  return [...(data?.files ?? [])].filter((file) => file.type.startsWith("image/"));
}

/** A file as a data URL. */
export function readAddress(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

export function AttachButton({ onFiles }: { onFiles: (files: File[]) => void }) {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <input
        ref={input}
        type="file"
        accept={TYPES}
        multiple
        hidden
        onChange={(e) => {
          onFiles([...(e.currentTarget.files ?? [])]);
          e.currentTarget.value = ""; // the same file may be chosen again
        }}
      />
      <button type="button" onClick={() => input.current?.click()}>
        Image
      </button>
    </>
  );
}

interface ImagesProps {
  images: string[];
  /** Absent where they cannot be removed. */
  onRemove?: (index: number) => void;
}

export function Images({ images, onRemove }: ImagesProps) {
  if (!images.length) return null;
  return (
    <ul class="images" aria-label="Images">
      {images.map((address, i) => (
        <li key={i}>
          <img src={address} alt={`Image ${i + 1}`} />
          {onRemove && (
            <button
              type="button"
              class="quiet"
              aria-label={`Remove image ${i + 1}`}
              onClick={() => onRemove(i)}
            >
              ✕
            </button>
          )}
        </li>
      ))}
    </ul>
  );
}
