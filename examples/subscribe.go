// What moves in a job, from a position that survives us, with the plain NATS client:
//
//	go mod init subscribe && go get github.com/nats-io/nats.go
//	go run subscribe.go nats://127.0.0.1:4222 JOB POSITION
//
// On a secured bus POSITION is the subscriber's name; its key is in TRAINMOVER_NATS_NKEY, and the
// authority's certificate in TRAINMOVER_NATS_CA where the bus encrypts.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: subscribe SERVER JOB POSITION")
	}
	server, job, position := os.Args[1], os.Args[2], os.Args[3]
	options := []nats.Option{nats.CustomInboxPrefix("_INBOX.subscriber-" + position)}
	if key := os.Getenv("TRAINMOVER_NATS_NKEY"); key != "" {
		option, err := nats.NkeyOptionFromSeed(key)
		check(err)
		options = append(options, option)
	}
	if ca := os.Getenv("TRAINMOVER_NATS_CA"); ca != "" {
		options = append(options, nats.RootCAs(ca))
	}
	connection, err := nats.Connect(server, options...)
	check(err)
	defer connection.Close()
	stream, err := jetstream.New(connection)
	check(err)
	facts, err := stream.CreateOrUpdateConsumer(context.Background(), "TM_EVENTS", jetstream.ConsumerConfig{
		Durable:       "facts:" + job + ":" + position,
		AckPolicy:     jetstream.AckExplicitPolicy,
		FilterSubject: "tm.v1." + job + ".migration.*",
	})
	check(err)
	messages, err := facts.Messages(jetstream.PullMaxMessages(10))
	check(err)
	for {
		fact, err := messages.Next()
		check(err)
		fmt.Println(fact.Headers().Get("ce-time"), fact.Headers().Get("ce-type"), string(fact.Data()))
		check(fact.Ack())
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
