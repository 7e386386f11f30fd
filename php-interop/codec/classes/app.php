<?php

/** Classes with the names and shapes that Laravel applications queue. */

namespace App\Jobs {
    class NS
    {
        public $p = 1;
        protected $q = 2;
        private $r = 3;
    }

    class ProcessPodcast
    {
        public $podcast;
        public bool $optimize = true;
        protected $tags = [];
        private $attempt = 1;
        public $connection;
        public $queue;
        public $delay;
        public $chained = [];
    }

    /** Writes mangled names from `__serialize`, as Laravel's SerializesModels does. */
    class WithModels
    {
        public $open;
        protected $guarded;
        private $own;

        public function __serialize(): array
        {
            return [
                'open' => $this->open,
                "\0*\0guarded" => $this->guarded,
                "\0" . self::class . "\0own" => $this->own,
            ];
        }

        public function __unserialize(array $values): void
        {
            $this->open = $values['open'] ?? null;
            $this->guarded = $values["\0*\0guarded"] ?? null;
            $this->own = $values["\0" . self::class . "\0own"] ?? null;
        }
    }

    class Événement
    {
        public $größe = 1;
        private $été = 2;
    }
}

namespace App\Enums {
    enum Status: int
    {
        case Live = 1;
        case Draft = 0;
    }
}

namespace Carbon {
    class Carbon extends \DateTime
    {
    }

    class CarbonImmutable extends \DateTimeImmutable
    {
    }
}

namespace Illuminate\Support {
    class Carbon extends \Carbon\Carbon
    {
    }
}

namespace Illuminate\Contracts\Database {
    class ModelIdentifier
    {
        public $class;
        public $id;
        public $relations;
        public $connection;
        public $collectionClass;
    }
}
